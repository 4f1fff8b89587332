#include "actors/core/subgraph_core.h"

#include "tests/unit/actors/toy_plan.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

using namespace testing_support;
using Arrival = SubgraphCore::Arrival;

class SubgraphCoreTest : public testing::Test {
 protected:
  static constexpr int32_t kMicroBatches = 2;
  const graph::Plan plan_ = toy_plan(kMicroBatches);
  const Schedule schedule_ = build_schedule(plan_, 0).value();

  SubgraphCore core(graph::LaunchId l) const {
    return {0, l, schedule_.launches[static_cast<size_t>(l)]};
  }
};

TEST_F(SubgraphCoreTest, ExecutesOnceAllInputsAreThere) {
  SubgraphCore b = core(kB);
  EXPECT_FALSE(b.inputs_ready(1, 0));
  EXPECT_EQ(b.on_input(1, 1, 0)->arrival, Arrival::kWaiting);
  EXPECT_FALSE(b.claim_leases(1, 0));
  EXPECT_FALSE(b.on_fired(1, 0).ok());
  EXPECT_EQ(b.on_input(0, 1, 0)->arrival, Arrival::kComplete);
  EXPECT_TRUE(b.claim_leases(1, 0));
  EXPECT_FALSE(b.claim_leases(1, 0));
  EXPECT_TRUE(b.on_fired(1, 0).ok());
  EXPECT_FALSE(b.last_of_step(1));
  EXPECT_EQ(b.num_open(), 1);
  EXPECT_TRUE(b.on_complete(1, 0).ok());
  EXPECT_EQ(b.num_open(), 0);
  EXPECT_EQ(b.num_executed(), 1);
}

TEST_F(SubgraphCoreTest, WhatComesAgainIsDroppedAndNothingRunsTwice) {
  SubgraphCore f1 = core(kF1);
  EXPECT_EQ(f1.on_input(0, 1, 1)->arrival, Arrival::kComplete);
  EXPECT_EQ(f1.on_input(0, 1, 1)->arrival, Arrival::kRepeated);
  ASSERT_TRUE(f1.on_fired(1, 1).ok());
  EXPECT_EQ(f1.on_input(0, 1, 1)->arrival, Arrival::kLate);
  EXPECT_FALSE(f1.on_fired(1, 1).ok());
  ASSERT_TRUE(f1.on_complete(1, 1).ok());
  EXPECT_FALSE(f1.on_complete(1, 1).ok());
  EXPECT_FALSE(f1.on_fired(1, 1).ok());
  EXPECT_EQ(f1.num_executed(), 1);
}

TEST_F(SubgraphCoreTest, KeepsInputsOfTheNextStepAndDropsThoseOfOldOnes) {
  SubgraphCore f1 = core(kF1);
  ASSERT_EQ(f1.on_input(0, 1, 0)->arrival, Arrival::kComplete);
  EXPECT_EQ(f1.on_input(0, 2, 0)->arrival, Arrival::kComplete);
  EXPECT_FALSE(f1.on_input(0, 3, 0).ok());  // its place belongs to step 1, still open
  ASSERT_TRUE(f1.on_fired(1, 0).ok());
  ASSERT_TRUE(f1.on_complete(1, 0).ok());
  EXPECT_TRUE(f1.inputs_ready(2, 0));
  EXPECT_EQ(f1.on_input(0, 3, 0)->arrival, Arrival::kComplete);
  EXPECT_EQ(f1.on_input(0, 1, 0)->arrival, Arrival::kLate);
}

TEST_F(SubgraphCoreTest, CountsTheFiringsOfAStep) {
  SubgraphCore f1 = core(kF1);
  for (int64_t step = 1; step <= 3; ++step) {
    for (int32_t m = 0; m < kMicroBatches; ++m) {
      ASSERT_TRUE(f1.on_input(0, step, m).ok());
      ASSERT_TRUE(f1.on_fired(step, m).ok());
      EXPECT_EQ(f1.last_of_step(step), m == kMicroBatches - 1);
      ASSERT_TRUE(f1.on_complete(step, m).ok());
    }
  }
}

TEST_F(SubgraphCoreTest, RefusesWhatItDoesNotAwait) {
  SubgraphCore f0 = core(kF0);
  EXPECT_FALSE(f0.on_input(0, 1, 0).ok());  // the parameter is state
  EXPECT_FALSE(f0.on_input(7, 1, 0).ok());
  EXPECT_FALSE(f0.on_input(1, 1, kMicroBatches).ok());
  EXPECT_FALSE(f0.on_input(1, -1, 0).ok());
  EXPECT_TRUE(f0.on_input(1, 1, 0).ok());
}

}  // namespace
}  // namespace sgactor::actors
