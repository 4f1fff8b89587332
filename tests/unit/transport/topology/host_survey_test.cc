#include "transport/topology/host_survey.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sgactor::transport {
namespace {

namespace fs = std::filesystem;

/// A root with /proc and /sys of a host that a test makes up.
class HostSurveyTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/sga_survey_" + std::to_string(::getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& name, const std::string& text) const {
    const fs::path file = root_ + "/" + name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  void cpu(int index, int socket, int core) const {
    const std::string at = "sys/devices/system/cpu/cpu" + std::to_string(index) + "/topology/";
    put(at + "physical_package_id", std::to_string(socket) + "\n");
    put(at + "core_id", std::to_string(core) + "\n");
  }

  std::string root_;
};

TEST_F(HostSurveyTest, CountsSocketsCoresAndThreads) {
  put("proc/sys/kernel/hostname", "node7\n");
  put("proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\n\nprocessor\t: 1\nmodel name\t: x\n"
      "processor\t: 2\nprocessor\t: 3\n");
  // Two sockets with a core each, two threads a core; a fifth one is not online.
  for (int i = 0; i < 4; ++i) cpu(i, i / 2, 0);
  fs::create_directories(root_ + "/sys/devices/system/cpu/cpu4");
  fs::create_directories(root_ + "/sys/devices/system/cpu/cpufreq");
  const HostSurvey host = survey_host(root_);
  EXPECT_EQ(host.name, "node7");
  EXPECT_EQ(host.cpu_model, "Some CPU @ 2.50GHz");
  EXPECT_EQ(host.sockets, 2);
  EXPECT_EQ(host.cores, 2);
  EXPECT_EQ(host.threads, 4);
}

TEST_F(HostSurveyTest, ReadsMemoryAndNodesInOrder) {
  put("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
  for (const int node : {0, 2, 10}) {
    const std::string at = "sys/devices/system/node/node" + std::to_string(node);
    put(at + "/cpulist", std::to_string(node) + "-9\n");
    put(at + "/meminfo", "Node " + std::to_string(node) + " MemTotal:       1024 kB\n");
  }
  const HostSurvey host = survey_host(root_);
  EXPECT_EQ(host.memory_bytes, 2048 * 1024);
  ASSERT_EQ(host.numa_nodes.size(), 3U);
  EXPECT_EQ(host.numa_nodes[1].index, 2);
  EXPECT_EQ(host.numa_nodes[2].index, 10);
  EXPECT_EQ(host.numa_nodes[2].cpus, "10-9");
  EXPECT_EQ(host.numa_nodes[2].memory_bytes, 1024 * 1024);
}

TEST_F(HostSurveyTest, KnowsSpeedsOnlyWhereTheyAreSaid) {
  put("sys/class/net/eth0/type", "1\n");
  put("sys/class/net/eth0/operstate", "up\n");
  put("sys/class/net/eth0/speed", "25000\n");
  put("sys/class/net/eth1/type", "1\n");
  put("sys/class/net/eth1/operstate", "down\n");
  put("sys/class/net/eth1/speed", "-1\n");
  put("sys/class/net/lo/type", "772\n");
  put("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  const HostSurvey host = survey_host(root_);
  ASSERT_EQ(host.interfaces.size(), 3U);
  EXPECT_EQ(host.interfaces[0].bits_per_s, 25'000'000'000);
  EXPECT_TRUE(host.interfaces[0].up);
  EXPECT_EQ(host.interfaces[1].bits_per_s, 0);
  EXPECT_FALSE(host.interfaces[1].up);
  EXPECT_EQ(host.interfaces[2].name, "mlx5_0:1");
  EXPECT_EQ(host.interfaces[2].kind, "infiniband");
  EXPECT_EQ(host.interfaces[2].bits_per_s, 400'000'000'000);
  EXPECT_TRUE(host.interfaces[2].up);
}

TEST_F(HostSurveyTest, AnEmptyRootSaysNothing) {
  const HostSurvey host = survey_host(root_);
  EXPECT_EQ(host.cores, 0);
  EXPECT_EQ(host.memory_bytes, 0);
  EXPECT_TRUE(host.interfaces.empty());
}

}  // namespace
}  // namespace sgactor::transport
