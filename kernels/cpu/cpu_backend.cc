#include "kernels/cpu/cpu_backend.h"

#include "graph/base/units.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lowering.h"
#include "kernels/cpu/stream.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace sgactor::kernels {
namespace cpu {
namespace {

constexpr int32_t kMaxThreads = 1024;

int32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

/// What the kernel would hand out before it ends processes; 0: it does not say.
int64_t available_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string name;
  std::string line;
  int64_t available = 0;
  int64_t swap = 0;
  for (int64_t kib = 0; info >> name >> kib; std::getline(info, line)) {
    if (name == "MemAvailable:") available = kib * 1024;
    if (name == "SwapFree:") swap = kib * 1024;
  }
  return available > 0 ? available + swap : 0;
}

DeviceInfo describe(const KernelTable& kernels, int32_t num_threads, int32_t index) {
  DeviceInfo info;
  info.backend = "cpu";
  info.device = fmt::format("cpu:{}", index);
  const std::string blas = blas_description();
  info.description = fmt::format("{}, {}, {} thread{}, {}", cpu_model(), kernels.family,
                                 num_threads, num_threads == 1 ? "" : "s", blas);
  // Neither the model nor the number of threads: bits follow the family and the library's core.
  info.fingerprint = fmt::format("cpu/{}/{}", kernels.family, blas);
  info.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  info.free_bytes = std::min(info.memory_bytes, available_bytes());
  info.num_threads = num_threads;
  return info;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::shared_ptr<CpuDevice> device) : device_(std::move(device)) {}

  [[nodiscard]] const DeviceInfo& info() const override { return device_->info; }
  [[nodiscard]] bool host_visible() const override { return true; }
  [[nodiscard]] int64_t storage_bytes(const TensorType& type) const override {
    return type.bytes();
  }

  Status write_tensor(std::byte* to, const TensorType& type,
                      std::span<const std::byte> native) override {
    SGA_TRY(check_size(type, native.size()));
    if (!native.empty()) std::memcpy(to, native.data(), native.size());
    return {};
  }
  Status read_tensor(std::span<std::byte> native, const TensorType& type,
                     const std::byte* from) override {
    SGA_TRY(check_size(type, native.size()));
    if (!native.empty()) std::memcpy(native.data(), from, native.size());
    return {};
  }

  Result<std::unique_ptr<Executable>> compile(const CompileRequest& request) override {
    Lowering lowering(device_, request);
    SGA_ASSIGN(std::unique_ptr<CpuExecutable> executable, lowering.build());
    return std::unique_ptr<Executable>(std::move(executable));
  }
  Result<std::unique_ptr<DeviceMemory>> allocate(int64_t bytes, std::string_view label) override {
    return allocate_aligned(device_->counter, bytes, label);
  }
  Result<std::unique_ptr<Stream>> create_stream() override { return create_cpu_stream(device_); }
  [[nodiscard]] AllocationStats allocation_stats() const override {
    return device_->counter->stats();
  }

 private:
  static Status check_size(const TensorType& type, size_t bytes) {
    if (static_cast<int64_t>(bytes) == type.bytes()) return {};
    return invalid_argument(
        fmt::format("{} has {} bytes, {} given", type.to_string(), type.bytes(), bytes));
  }

  std::shared_ptr<CpuDevice> device_;
};

}  // namespace
}  // namespace cpu

Result<std::unique_ptr<Backend>> create_cpu_backend(const BackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > cpu::kMaxThreads) {
    return invalid_argument(
        fmt::format("cpu: {} threads, expected 0 to {}", options.num_threads, cpu::kMaxThreads));
  }
  const int32_t threads = options.num_threads == 0 ? cpu::usable_cores() : options.num_threads;
  cpu::init_blas();
  try {
    auto device = std::make_shared<cpu::CpuDevice>(threads);
    device->kernels = &cpu::select_kernel_table();
    device->info = cpu::describe(*device->kernels, threads, options.device_index);
    return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(std::move(device)));
  } catch (const std::system_error& e) {
    return make_status(Code::kInternal,
                       fmt::format("cpu: cannot start {} threads: {}", threads, e.what()),
                       Scope::kDevice);
  }
}

}  // namespace sgactor::kernels
