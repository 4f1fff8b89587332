#include "actors/core/pool_core.h"

#include "tests/unit/actors/toy_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace sgactor::actors {
namespace {

using namespace testing_support;

class PoolCoreTest : public testing::Test {
 protected:
  const graph::Plan plan_ = toy_plan(2);
  const Schedule schedule_ = build_schedule(plan_, 0).value();
  PoolCore pool_{plan_.programs[0], schedule_};
  std::vector<LeaseGrant> grants_;

  /// Grants since the last call.
  std::vector<LeaseGrant> take() { return std::exchange(grants_, {}); }
};

TEST_F(PoolCoreTest, WhatSharesBytesIsGrantedInPlannedOrder) {
  // Positions: 0 feed, 1 f0, 2 f1, 3 b (workspace), then micro-batch 1.
  ASSERT_TRUE(pool_.request(0, {1, 3}, &grants_).ok());
  EXPECT_TRUE(take().empty());  // the feed has the same bytes and comes first, asked or not
  ASSERT_TRUE(pool_.request(0, {1, 1}, &grants_).ok());
  EXPECT_EQ(take().size(), 1U);  // f0 shares none
  ASSERT_TRUE(pool_.request(0, {1, 0}, &grants_).ok());
  const auto feed = take();
  ASSERT_EQ(feed.size(), 1U);
  EXPECT_EQ(feed[0].at, (LanePoint{1, 0}));
  ASSERT_TRUE(pool_.release(feed[0].leases[0], {1, 1}, &grants_).ok());
  const auto b = take();
  ASSERT_EQ(b.size(), 1U);
  EXPECT_EQ(b[0].at, (LanePoint{1, 3}));
  EXPECT_EQ(pool_.stats().num_held, 2);
}

TEST_F(PoolCoreTest, ALaterStepWaitsForTheOneBefore) {
  ASSERT_TRUE(pool_.request(0, {4, 0}, &grants_).ok());
  const auto feed = take();
  ASSERT_EQ(feed.size(), 1U);
  ASSERT_TRUE(pool_.release(feed[0].leases[0], {4, 1}, &grants_).ok());
  ASSERT_TRUE(pool_.request(0, {5, 0}, &grants_).ok());
  EXPECT_TRUE(take().empty());  // b of step 4 has not had these bytes yet
}

TEST_F(PoolCoreTest, BytesThatOverlapAreNeverOutTwice) {
  for (int32_t p : {0, 1, 2, 3}) ASSERT_TRUE(pool_.request(0, {1, p}, &grants_).ok());
  const auto first = take();
  ASSERT_EQ(first.size(), 3U);  // b's workspace lies where the tokens are
  ASSERT_TRUE(pool_.release(first[0].leases[0], {1, 1}, &grants_).ok());
  const auto b = take();
  ASSERT_EQ(b.size(), 1U);
  EXPECT_EQ(b[0].at.position, 3);
  ASSERT_TRUE(pool_.request(0, {1, 4}, &grants_).ok());  // tokens of micro-batch 1
  EXPECT_TRUE(take().empty());
  ASSERT_TRUE(pool_.release(b[0].leases[0], {1, 3}, &grants_).ok());
  EXPECT_EQ(take().size(), 1U);
}

TEST_F(PoolCoreTest, ALeaseComesBackExactlyOnce) {
  ASSERT_TRUE(pool_.request(0, {1, 0}, &grants_).ok());
  const LeaseId lease = take()[0].leases[0];
  EXPECT_FALSE(pool_.release({lease.slot, lease.serial + 1}, {1, 1}, &grants_).ok());
  EXPECT_TRUE(pool_.release(lease, {1, 1}, &grants_).ok());
  EXPECT_FALSE(pool_.release(lease, {1, 1}, &grants_).ok());
  EXPECT_FALSE(pool_.release({99, 1}, {1, 1}, &grants_).ok());
}

TEST_F(PoolCoreTest, RefusesWhatHasNothingToLeaseAndAsksTwice) {
  EXPECT_FALSE(pool_.request(0, {1, 8}, &grants_).ok());  // reduce writes persistent memory
  EXPECT_FALSE(pool_.request(3, {1, 0}, &grants_).ok());
  ASSERT_TRUE(pool_.request(0, {1, 1}, &grants_).ok());
  EXPECT_FALSE(pool_.request(0, {1, 1}, &grants_).ok());
  ASSERT_TRUE(pool_.request(0, {1, 0}, &grants_).ok());
  EXPECT_FALSE(pool_.request(0, {1, 0}, &grants_).ok());
}

TEST_F(PoolCoreTest, HighWaterIsThePlansAfterAStep) {
  std::map<int32_t, LeaseId> out;
  for (int64_t step = 1; step <= 2; ++step) {
    for (int32_t p = 0; p < 8; ++p) {
      ASSERT_TRUE(pool_.request(0, {step, p}, &grants_).ok());
      for (const LeaseGrant& g : take()) out[g.at.position] = g.leases[0];
      ASSERT_TRUE(out.contains(p)) << p;
      // What b is the last to use goes back with it.
      for (int32_t back : p % 4 == 3   ? std::vector<int32_t>{p - 2, p - 1, p}
                          : p % 4 == 1 ? std::vector<int32_t>{p - 1}
                                       : std::vector<int32_t>{}) {
        ASSERT_TRUE(pool_.release(out[back], {step, p}, &grants_).ok());
        out.erase(back);
      }
    }
    EXPECT_EQ(pool_.stats().num_held, 0);
    EXPECT_EQ(pool_.stats().high_water_bytes, plan_.programs[0].arena_bytes);
  }
  EXPECT_EQ(pool_.stats().num_granted, 16);
}

/// Two lanes that share bytes: x on lane 0, y on lane 1.
TEST(PoolCore, AnotherLaneWaitsForCompletionNotForOrder) {
  graph::RankProgram program;
  for (const char* name : {"x", "y"}) {
    graph::Buffer b;
    b.name = name;
    b.bytes = 256;
    b.offsets = {0};
    program.buffers.push_back(b);
  }
  program.lanes.resize(2);
  Schedule schedule;
  schedule.lanes = {{{ItemKind::kLaunch, 0, 0, {{0, 0}}}, {ItemKind::kEnd, -1, 0, {}}},
                    {{ItemKind::kLaunch, 1, 0, {{1, 0}}}, {ItemKind::kEnd, -1, 0, {}}}};
  PoolCore pool(program, schedule);
  std::vector<LeaseGrant> grants;
  ASSERT_TRUE(pool.request(0, {1, 0}, &grants).ok());
  ASSERT_EQ(grants.size(), 1U);
  const LeaseId x = grants[0].leases[0];
  grants.clear();
  ASSERT_TRUE(pool.request(1, {1, 0}, &grants).ok());
  ASSERT_TRUE(pool.release(x, {1, 0}, &grants).ok());
  EXPECT_TRUE(grants.empty());
  pool.on_progress(0, {1, 0}, &grants);
  EXPECT_EQ(grants.size(), 1U);
}

}  // namespace
}  // namespace sgactor::actors
