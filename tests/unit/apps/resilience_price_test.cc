#include "apps/sgactor/resilience_price.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

graph::Buffer buffer(graph::BufferKind kind, int64_t bytes) {
  graph::Buffer out;
  out.kind = kind;
  out.bytes = bytes;
  return out;
}

/// Two data-parallel ranks of one program: 100 bytes of parameters, 200 of moments, and an update
/// that reads 70 bytes of gradients.
graph::Plan two_ranks(int32_t zero_stage) {
  graph::Plan plan;
  plan.mesh = {1, 2, 1};
  plan.zero_stage = zero_stage;
  plan.ranks = {{0, 0, 0, 0}, {0, 1, 0, 0}};
  graph::RankProgram& program = plan.programs.emplace_back();
  program.buffers = {buffer(graph::BufferKind::kParameter, 100),
                     buffer(graph::BufferKind::kMoment, 200),
                     buffer(graph::BufferKind::kAccumulator, 70)};
  graph::Launch& update = program.launches.emplace_back();
  update.phase = graph::Phase::kUpdate;
  for (const graph::BufferId b : {0, 1, 2}) update.inputs.emplace_back().buffer = b;
  update.outputs = {0, 1};
  return plan;
}

TEST(ResiliencePrice, CountsWhatReplicasShareOnce) {
  const auto prices = price_modes(two_ranks(0), 10);
  ASSERT_EQ(prices.size(), 3U);
  EXPECT_EQ(prices[0].mode, "off");
  EXPECT_EQ(prices[0].memory_bytes + prices[0].traffic_bytes, 0);
  EXPECT_TRUE(prices[1].possible);
  EXPECT_EQ(prices[1].memory_bytes, 300);
  EXPECT_EQ(prices[1].traffic_bytes, 0);
  EXPECT_EQ(prices[2].mode, "mirror");
  EXPECT_EQ(prices[2].memory_bytes, 3 * 300 + 2 * 10 * 70);
  EXPECT_EQ(prices[2].traffic_bytes, 70 + 30);
}

TEST(ResiliencePrice, ShardedStateHasNoReplica) {
  const auto prices = price_modes(two_ranks(3), 10);
  EXPECT_FALSE(prices[1].possible);
  EXPECT_NE(prices[1].why_not.find("zero_stage"), std::string::npos);
  // Every rank's shard counts.
  EXPECT_EQ(prices[2].traffic_bytes, 2 * 70 + 60);
}

TEST(ResiliencePrice, RanksHoldAllOfTheirProgramsState) {
  const std::vector<RankBytes> bytes = bytes_of_ranks(two_ranks(0));
  ASSERT_EQ(bytes.size(), 2U);
  for (const RankBytes& b : bytes) {
    EXPECT_EQ(b.state, 300);
    EXPECT_EQ(b.inputs, 70);
  }
}

}  // namespace
}  // namespace sgactor::apps
