// A kernel that writes to no memory makes the driver report an XID, which reaches the node's table.
#include "supervision/monitor/driver_faults.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sgactor::supervision {
namespace {

constexpr const char* kWriteNowhere = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry write_nowhere() {
  .reg .b64 %a;
  .reg .b32 %v;
  mov.u64 %a, 64;
  mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
)";

/// Ends the process: 0 if the kernel ran and failed, as it must. The driver is found by name, since
/// its headers are for kernels/cuda alone.
[[noreturn]] void write_nowhere() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) _exit(2);
  const auto call = [driver](const char* name, auto... arguments) {
    const auto function = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(driver, name));
    return function == nullptr ? -1 : function(arguments...);
  };
  int device = 0;
  void* context = nullptr;
  void* module = nullptr;
  void* kernel = nullptr;
  if (call("cuInit", 0U) != 0 || call("cuDeviceGet", &device, 0) != 0) _exit(2);
  if (call("cuDevicePrimaryCtxRetain", &context, device) != 0) _exit(3);
  if (call("cuCtxSetCurrent", context) != 0) _exit(4);
  if (call("cuModuleLoadData", &module, static_cast<const void*>(kWriteNowhere)) != 0) _exit(5);
  if (call("cuModuleGetFunction", &kernel, module, "write_nowhere") != 0) _exit(6);
  void* none = nullptr;
  if (call("cuLaunchKernel", kernel, 1U, 1U, 1U, 1U, 1U, 1U, 0U, none, none, none) != 0) _exit(7);
  _exit(call("cuCtxSynchronize") != 0 ? 0 : 8);
}

TEST(Xid, OfAWriteToNowhereIsHeard) {
  DriverFaults faults;
  if (const Status status = faults.assign(5, 0, {0}); !status.ok()) {
    GTEST_SKIP() << status.message();
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) write_nowhere();
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFEXITED(how));
  ASSERT_EQ(WEXITSTATUS(how), 0) << "the kernel did not fail";
  pollfd fd = {faults.event_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&fd, 1, 10'000), 1) << "no event within ten seconds";
  const auto fault = faults.next();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->worker, 5);
  EXPECT_TRUE(fault->xid == 31 || fault->xid == 13) << fault->xid;
  EXPECT_EQ(action_of(*fault), Action::kReplaceWorker) << to_string(*fault);
}

}  // namespace
}  // namespace sgactor::supervision
