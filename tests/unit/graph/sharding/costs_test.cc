#include "graph/sharding/costs.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sgactor::graph {
namespace {

constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();

TEST(ShardingCosts, LocalTypesAreCutUpwards) {
  const TensorType type{DType::kF32, Shape{7, 4}};
  EXPECT_EQ(local_type(type, Placement::shard(0), 2).shape, (Shape{4, 4}));
  EXPECT_EQ(local_type(type, Placement::shard(0), 4).shape, (Shape{2, 4}));
  EXPECT_EQ(local_type(type, Placement::shard(1), 4).shape, (Shape{7, 1}));
  EXPECT_EQ(local_type(type, kR, 4), type);
  EXPECT_EQ(local_type(type, kP, 4), type);
}

TEST(ShardingCosts, AxesInsideHostsUseTheirLinks) {
  const DeviceSpec fast{"h200", 1, 1e15};
  const DeviceSpec slow{"h100", 1, 5e14};
  const ClusterSpec cluster{{25e9, 1e-5},
                            {{"a", {4e11, 5e-6}, {fast, fast}}, {"b", {3e11, 4e-6}, {slow, fast}}}};
  const AxisCosts inside = axis_costs(cluster, 2);
  EXPECT_EQ(inside.bytes_per_s, 3e11);
  EXPECT_EQ(inside.latency_s, 5e-6);
  EXPECT_EQ(inside.flops_per_s, 5e14);
  const AxisCosts across = axis_costs(cluster, 4);
  EXPECT_EQ(across.bytes_per_s, 25e9);
  EXPECT_EQ(across.latency_s, 1e-5);
}

TEST(ShardingCosts, RingsMoveWhatTheyMove) {
  const AxisCosts costs{.latency_s = 1, .bytes_per_s = 100, .flops_per_s = 1};
  const TensorType type{DType::kF32, Shape{100}};  // 400 bytes
  EXPECT_DOUBLE_EQ(conversion_seconds(type, Placement::shard(0), kR, 4, costs), 3 + 3);
  EXPECT_DOUBLE_EQ(conversion_seconds(type, kP, Placement::shard(0), 4, costs), 3 + 3);
  EXPECT_DOUBLE_EQ(conversion_seconds(type, kP, kR, 4, costs), 12);
  EXPECT_EQ(conversion_seconds(type, kR, Placement::shard(0), 4, costs), 0);
  EXPECT_EQ(conversion_seconds(type, kP, kP, 4, costs), 0);
  EXPECT_EQ(conversion_seconds(type, kP, kR, 1, costs), 0);
  EXPECT_TRUE(std::isinf(conversion_seconds(type, kR, kP, 4, costs)));
}

}  // namespace
}  // namespace sgactor::graph
