#include "actors/core/schedule.h"

#include "tests/unit/actors/toy_plan.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

using namespace testing_support;

TEST(Schedule, PutsFeedCommitAndEndIntoTheLane) {
  const graph::Plan plan = toy_plan(2);
  const auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
  std::vector<ItemKind> kinds;
  for (const LaneItem& item : schedule->lanes[0]) kinds.push_back(item.kind);
  using K = ItemKind;
  EXPECT_EQ(kinds, (std::vector<ItemKind>{K::kFeed, K::kLaunch, K::kLaunch, K::kLaunch, K::kFeed,
                                          K::kLaunch, K::kLaunch, K::kLaunch, K::kLaunch,
                                          K::kCommit, K::kLaunch, K::kEnd}));
  EXPECT_EQ(schedule->feed_positions, (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(schedule->launches[kF1].positions, (std::vector<int32_t>{2, 6}));
}

TEST(Schedule, WiresHandlesToWhoeverWaits) {
  const graph::Plan plan = toy_plan(2);
  const auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok());
  const LaunchWiring& f0 = schedule->launches[kF0];
  ASSERT_EQ(f0.consumers[0].size(), 2U);
  EXPECT_EQ(f0.consumers[0][0].launch, kF1);
  EXPECT_EQ(f0.consumers[0][1].launch, kB);
  EXPECT_EQ(f0.awaited, (std::vector<int32_t>{1}));  // tokens; the parameter is state
  EXPECT_EQ(f0.num_firings, 2);
  EXPECT_EQ(f0.num_leases, 1);
  const LaunchWiring& b = schedule->launches[kB];
  EXPECT_EQ(b.num_leases, 1);  // the workspace; its output is persistent
  EXPECT_TRUE(b.has_workspace);
  EXPECT_EQ(b.output_lease[0], -1);
  ASSERT_EQ(b.consumers[0].size(), 2U);
  EXPECT_EQ(b.consumers[0][0].edge, graph::EdgeKind::kLastMicroBatch);
  EXPECT_EQ(schedule->launches[kUpdateLaunch].num_firings, 1);
  ASSERT_EQ(schedule->batch_consumers.size(), 1U);
  EXPECT_EQ(schedule->batch_consumers[0][0].launch, kF0);
}

TEST(Schedule, ActivationUpdatedInPlaceKeepsItsLease) {
  graph::Plan plan = toy_plan(1);
  plan.programs[0].launches[kF1].outputs = {kAct0};
  plan.programs[0].launches[kB].inputs[1].buffer = kAct0;
  plan.programs[0].launches[kB].inputs.erase(plan.programs[0].launches[kB].inputs.begin());
  const auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
  EXPECT_EQ(schedule->launches[kF1].num_leases, 0);
  EXPECT_EQ(schedule->launches[kF1].output_alias[0], 0);
}

TEST(Schedule, RefusesWhatHangsLoose) {
  graph::Plan plan = toy_plan(1);
  plan.programs[0].launches[kF1].inputs[0].producer = graph::kNoLaunch;
  const auto loose = build_schedule(plan, 0);
  ASSERT_FALSE(loose.ok());
  EXPECT_EQ(loose.status().code(), Code::kInvalidPlan);
  EXPECT_NE(loose.status().message().find("launch f1"), std::string::npos);
  EXPECT_FALSE(build_schedule(plan, 1).ok());
  graph::Plan twice = toy_plan(1);
  twice.programs[0].lanes[0].order.push_back({kReduceLaunch, 1});
  EXPECT_FALSE(build_schedule(twice, 0).ok());
}

}  // namespace
}  // namespace sgactor::actors
