#include "apps/sgactor/topo_file.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

TEST(TopoFile, GpusAreFoundByTheirNames) {
  ASSERT_NE(find_gpu("NVIDIA H200"), nullptr);
  EXPECT_EQ(find_gpu("NVIDIA H200")->kind, "h200");
  // One name is part of another's.
  EXPECT_EQ(find_gpu("NVIDIA GH200 480GB")->kind, "gh200");
  EXPECT_EQ(find_gpu("NVIDIA H100 PCIe")->kind, "h100-pcie");
  EXPECT_EQ(find_gpu("NVIDIA H100 80GB HBM3")->kind, "h100");
  EXPECT_EQ(find_gpu("NVIDIA A100-SXM4-40GB")->kind, "a100-40gb");
  EXPECT_EQ(find_gpu("NVIDIA L40S")->kind, "l40s");
  EXPECT_EQ(find_gpu("NVIDIA L40")->kind, "l40");
  EXPECT_EQ(find_gpu("NVIDIA L4")->kind, "l4");
  EXPECT_EQ(find_gpu("NVIDIA A10")->kind, "a10");
  EXPECT_EQ(find_gpu("NVIDIA A1000"), nullptr) << "another device, whose name begins alike";
  EXPECT_EQ(find_gpu("Unheard-of"), nullptr);
}

TEST(TopoFile, TheFastestInterfaceThatIsUpCounts) {
  transport::HostSurvey host;
  std::string source;
  EXPECT_DOUBLE_EQ(network_of(host, source).bytes_per_s, 1.25e9);
  EXPECT_TRUE(source.starts_with("assumed")) << source;
  host.interfaces = {{"eth0", "ethernet", true, 25'000'000'000},
                     {"eth1", "ethernet", false, 200'000'000'000},
                     {"eth2", "ethernet", true, 0}};
  EXPECT_DOUBLE_EQ(network_of(host, source).bytes_per_s, 25e9 / 8);
  EXPECT_NE(source.find("eth0 says 25 Gbit/s"), std::string::npos) << source;
}

TEST(TopoFile, GpusAreJoinedByNvlinkElsePciExpress) {
  std::string source;
  transport::NvidiaDevice gpu;
  gpu.name = "NVIDIA H200";
  gpu.nvlinks = 18;
  gpu.pcie_generation = 5;
  gpu.pcie_width = 16;
  EXPECT_DOUBLE_EQ(gpu_link(gpu, source).bytes_per_s, 3.6e11);
  gpu.nvlinks = 0;
  EXPECT_NEAR(gpu_link(gpu, source).bytes_per_s, 50.4e9, 0.1e9);
  EXPECT_NE(source.find("PCI Express 5 with 16 lanes"), std::string::npos) << source;
  gpu.pcie_generation = 0;
  EXPECT_GT(gpu_link(gpu, source).bytes_per_s, 0);
  EXPECT_TRUE(source.starts_with("assumed")) << source;
}

TEST(TopoFile, TheTextIsReadBackAndSaysItsSources) {
  SourcedCluster sourced;
  sourced.cluster.network = {1.25e9, 5e-5};
  sourced.cluster.hosts = {{one_word("my host, #1"), {3e9, 1e-6}, {}}};
  sourced.cluster.hosts[0].devices.assign(2, {"cpu", int64_t{1} << 30, 1.5e11, 1e10});
  sourced.network_source = "assumed";
  sourced.link_source = "measured";
  sourced.device_source = "looked up";
  const std::string text = topology_text(sourced);
  EXPECT_NE(text.find("# assumed\nnetwork"), std::string::npos) << text;
  EXPECT_NE(text.find("# measured\nhost my-host---1 "), std::string::npos) << text;
  EXPECT_NE(text.find("  # looked up\n  device cpu"), std::string::npos) << text;
  const auto read = graph::parse_cluster(text);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(*read == sourced.cluster);
}

}  // namespace
}  // namespace sgactor::apps
