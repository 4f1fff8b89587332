#include "transport/topology/nvml_devices.h"

#include <gtest/gtest.h>

namespace sgactor::transport {
namespace {

TEST(NvmlDevices, AreDescribedAsFarAsTheDriverKnowsThem) {
  const auto devices = list_nvidia_devices(SGA_FAKE_NVML_DEVICES);
  ASSERT_TRUE(devices.ok()) << devices.status().to_string();
  ASSERT_EQ(devices->size(), 2U);
  const NvidiaDevice& first = (*devices)[0];
  EXPECT_EQ(first.name, "NVIDIA H200");
  EXPECT_EQ(first.uuid, "GPU-1");
  EXPECT_EQ(first.pci, "00000000:3B:00.0");
  EXPECT_EQ(first.memory_bytes, 150754820096);
  EXPECT_EQ(first.nvlinks, 12);
  EXPECT_EQ(first.pcie_generation, 5);
  EXPECT_EQ(first.pcie_width, 16);
  const NvidiaDevice& second = (*devices)[1];
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(second.name, "NVIDIA Unheard-of 1");
  EXPECT_EQ(second.pci, "");
  EXPECT_EQ(second.nvlinks, 0);
  EXPECT_EQ(second.pcie_generation, 0);
}

TEST(NvmlDevices, NeedALibrary) {
  const auto none = list_nvidia_devices("no-such-library.so");
  EXPECT_EQ(none.status().code(), Code::kUnsupported);
  EXPECT_NE(none.status().message().find("no-such-library.so"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::transport
