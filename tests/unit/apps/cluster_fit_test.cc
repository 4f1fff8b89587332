#include "apps/sgactor/cluster_fit.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

/// pp 1 x dp 2 x tp 2, each rank with an arena of 100 bytes.
graph::Plan four_ranks() {
  graph::Plan plan;
  plan.mesh = {1, 2, 2};
  for (int32_t dp = 0; dp < 2; ++dp)
    for (int32_t tp = 0; tp < 2; ++tp) plan.ranks.push_back({0, dp, tp, 0});
  plan.programs.emplace_back().arena_bytes = 100;
  return plan;
}

graph::ClusterSpec cluster(const std::vector<std::vector<int64_t>>& memory_of_hosts) {
  graph::ClusterSpec spec;
  for (const auto& devices : memory_of_hosts) {
    graph::HostSpec& host = spec.hosts.emplace_back();
    host.name = "h" + std::to_string(spec.hosts.size() - 1);
    for (const int64_t bytes : devices) host.devices.push_back({"cpu", bytes, 1, 1});
  }
  return spec;
}

TEST(ClusterFit, TensorParallelGroupsStayInsideHosts) {
  const ClusterFit fit = cluster_fit(four_ranks(), cluster({{100, 200}, {300, 400}}));
  EXPECT_EQ(fit.devices, 4);
  EXPECT_EQ(fit.used, 4);
  EXPECT_EQ(fit.needed_bytes, 100);
  EXPECT_EQ(fit.room_bytes, 100);
  EXPECT_TRUE(fit.fits());
  ASSERT_EQ(fit.hosts.size(), 2U);
  EXPECT_EQ(fit.hosts[0].ranks, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(fit.hosts[1].ranks, (std::vector<int32_t>{2, 3}));
  ASSERT_EQ(fit.axes.size(), 2U);
  EXPECT_EQ(fit.axes[0].name, "tp");
  EXPECT_EQ(fit.axes[0].groups, 2);
  EXPECT_EQ(fit.axes[0].inside_hosts, 2);
  EXPECT_EQ(fit.axes[1].name, "dp");
  EXPECT_EQ(fit.axes[1].groups, 2);
  EXPECT_EQ(fit.axes[1].inside_hosts, 0);
}

TEST(ClusterFit, AHostOfThreeCutsAGroup) {
  const ClusterFit fit = cluster_fit(four_ranks(), cluster({{100, 100, 100}, {99}}));
  EXPECT_EQ(fit.axes[0].inside_hosts, 1);
  EXPECT_FALSE(fit.fits());
}

TEST(ClusterFit, FewerDevicesHostSeveralRanksEach) {
  const ClusterFit fit = cluster_fit(four_ranks(), cluster({{200}, {200}}));
  EXPECT_EQ(fit.used, 2);
  EXPECT_EQ(fit.needed_bytes, 200);
  EXPECT_TRUE(fit.fits());
  EXPECT_EQ(fit.axes[0].inside_hosts, 2);
}

TEST(ClusterFit, DevicesBeyondTheRanksHostNone) {
  const ClusterFit fit = cluster_fit(four_ranks(), cluster({{100, 100, 100, 100}, {100}}));
  EXPECT_EQ(fit.devices, 5);
  EXPECT_EQ(fit.used, 4);
  EXPECT_TRUE(fit.hosts[1].ranks.empty());
  EXPECT_EQ(fit.hosts[1].used, 0);
  EXPECT_EQ(fit.axes[1].inside_hosts, 2);
}

TEST(ClusterFit, RangesAreShort) {
  EXPECT_EQ(print_ranges({}), "");
  EXPECT_EQ(print_ranges({3}), "3");
  EXPECT_EQ(print_ranges({7, 0, 1, 2, 9, 10}), "0-2 7 9-10");
}

}  // namespace
}  // namespace sgactor::apps
