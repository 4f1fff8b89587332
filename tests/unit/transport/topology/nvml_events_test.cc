// XID events reach whoever owns the device, under the number by which that one knows it.
#include "transport/topology/nvml_events.h"

#include "graph/base/log.h"
#include "tests/unit/transport/topology/fake_nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>

namespace sgactor::transport {
namespace {

class NvmlEventsTest : public testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(SGA_FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    raise_ = reinterpret_cast<decltype(&fake_nvml_raise)>(dlsym(library_, "fake_nvml_raise"));
    lose_ = reinterpret_cast<decltype(&fake_nvml_lose)>(dlsym(library_, "fake_nvml_lose"));
    fail_ =
        reinterpret_cast<decltype(&fake_nvml_init_fails)>(dlsym(library_, "fake_nvml_init_fails"));
    deafen_ = reinterpret_cast<decltype(&fake_nvml_deafen)>(dlsym(library_, "fake_nvml_deafen"));
    open_ = reinterpret_cast<decltype(&fake_nvml_open)>(dlsym(library_, "fake_nvml_open"));
    ASSERT_TRUE(deafen_ != nullptr && raise_ != nullptr && lose_ != nullptr && fail_ != nullptr &&
                open_ != nullptr);
  }
  void TearDown() override { EXPECT_EQ(open_(), 0) << "something was left open"; }

  static NvmlEvents::Options options(const std::string& visible = "") {
    return {SGA_FAKE_NVML, visible};
  }
  /// The next event, which must come within ten seconds.
  static DeviceEvent wait(NvmlEvents& events) {
    pollfd fd = {events.event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&fd, 1, 10'000), 1);
    return events.next().value_or(DeviceEvent{-1, -1});
  }

  void* library_ = nullptr;
  decltype(&fake_nvml_raise) raise_ = nullptr;
  decltype(&fake_nvml_lose) lose_ = nullptr;
  decltype(&fake_nvml_init_fails) fail_ = nullptr;
  decltype(&fake_nvml_deafen) deafen_ = nullptr;
  decltype(&fake_nvml_open) open_ = nullptr;
};

TEST_F(NvmlEventsTest, ComeInOrderFromTheDevicesAskedFor) {
  auto events = NvmlEvents::open({0, 2}, options());
  ASSERT_TRUE(events.ok()) << events.status().message();
  EXPECT_FALSE((*events)->next().has_value());
  raise_(1, 13);
  raise_(2, 31);
  raise_(0, 79);
  EXPECT_EQ(wait(**events), (DeviceEvent{2, 31}));
  EXPECT_EQ(wait(**events), (DeviceEvent{0, 79}));
  pollfd fd = {(*events)->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 0) << "readable without an event";
}

TEST_F(NvmlEventsTest, FollowWhatIsVisible) {
  auto events = NvmlEvents::open({0, 1}, options("GPU-3,1"));
  ASSERT_TRUE(events.ok()) << events.status().message();
  raise_(3, 48);
  EXPECT_EQ(wait(**events), (DeviceEvent{0, 48}));
  raise_(1, 94);
  EXPECT_EQ(wait(**events), (DeviceEvent{1, 94}));
}

TEST_F(NvmlEventsTest, ADeviceThatIsLostIsReportedOnce) {
  auto events = NvmlEvents::open({0, 1}, options());
  ASSERT_TRUE(events.ok()) << events.status().message();
  lose_(1);
  EXPECT_EQ(wait(**events), (DeviceEvent{1, 79}));
  raise_(0, 13);
  EXPECT_EQ(wait(**events), (DeviceEvent{0, 13})) << "the others are heard as before";
  EXPECT_FALSE((*events)->next().has_value());
}

TEST_F(NvmlEventsTest, ADeviceThatCannotBeHeardIsLeftOut) {
  deafen_(true);
  auto events = NvmlEvents::open({2, 0}, options());
  const auto none = NvmlEvents::open({2}, options());
  deafen_(false);
  ASSERT_TRUE(events.ok()) << events.status().message();
  EXPECT_EQ(none.status().code(), Code::kUnsupported);
  EXPECT_EQ(log::num_warnings(), 1) << "of several, the one that is left out is named";
  log::reset_warnings();
  raise_(2, 31);
  raise_(0, 79);
  EXPECT_EQ(wait(**events), (DeviceEvent{0, 79}));
}

TEST_F(NvmlEventsTest, SayWhatIsMissing) {
  const auto no_library = NvmlEvents::open({0}, {"libno-such-nvml.so.1", ""});
  EXPECT_EQ(no_library.status().code(), Code::kUnsupported);
  EXPECT_NE(no_library.status().message().find("libno-such-nvml.so.1"), std::string::npos);
  fail_(9);
  const auto no_driver = NvmlEvents::open({0}, options());
  fail_(0);
  EXPECT_EQ(no_driver.status().code(), Code::kUnsupported);
  EXPECT_EQ(no_driver.status().message(), "nvml: Driver Not Loaded");
  EXPECT_EQ(NvmlEvents::open({7}, options()).status().code(), Code::kUnsupported);
  EXPECT_EQ(NvmlEvents::open({2}, options("0,1")).status().code(), Code::kInvalidArgument);
}

TEST_F(NvmlEventsTest, AreCountedAsFarAsTheyAreVisible) {
  EXPECT_EQ(*count_devices(options()), 4);
  EXPECT_EQ(*count_devices(options("3,1")), 2);
  EXPECT_EQ(*count_devices(options("0,1,4,2")), 2)
      << "what comes behind one that is none is not seen";
  fail_(9);
  EXPECT_EQ(*count_devices(options("2,0")), 2) << "without a driver the list is believed";
  EXPECT_EQ(count_devices(options()).status().message(), "nvml: Driver Not Loaded");
  fail_(0);
}

TEST(VisibleDevices, EndBeforeTheFirstEntryThatIsNone) {
  EXPECT_EQ(num_visible_devices(8, ""), 8);
  EXPECT_EQ(num_visible_devices(8, "7"), 1);
  EXPECT_EQ(num_visible_devices(8, "GPU-8932f937,2"), 2);
  EXPECT_EQ(num_visible_devices(8, "1,-1,2"), 1);
  EXPECT_EQ(num_visible_devices(8, "-1"), 0);
  EXPECT_EQ(num_visible_devices(8, "1,"), 1);
  EXPECT_EQ(num_visible_devices(8, "1,x"), 1);
}

TEST(DriverAddress, IsTheEntryOfTheList) {
  EXPECT_EQ(driver_address(2, "")->bus_index, 2);
  EXPECT_EQ(driver_address(0, "3,1")->bus_index, 3);
  EXPECT_EQ(driver_address(1, "3,1")->bus_index, 1);
  EXPECT_EQ(driver_address(1, "3,GPU-8932f937")->uuid, "GPU-8932f937");
  for (const char* visible : {"3", "3,", "3,x", "3,MIG-0a1b", "3,-1"}) {
    const auto address = driver_address(1, visible);
    EXPECT_EQ(address.status().code(), Code::kInvalidArgument) << visible;
    EXPECT_NE(address.status().message().find(visible), std::string::npos);
  }
}

}  // namespace
}  // namespace sgactor::transport
