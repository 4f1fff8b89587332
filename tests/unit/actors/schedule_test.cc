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

/// f0 and f1 as they are; their outputs go through a channel before b reads them.
graph::Plan with_channel(int32_t num_micro_batches) {
  graph::Plan plan = toy_plan(num_micro_batches);
  graph::RankProgram& p = plan.programs[0];
  graph::Lane lane;
  lane.kind = graph::LaneKind::kCommunication;
  for (int32_t m = 0; m < num_micro_batches; ++m) lane.order.push_back({5, m, 3 * m + 1});
  p.lanes.push_back(lane);
  graph::Launch send;
  send.name = "send";
  send.kind = graph::LaunchKind::kSend;
  send.lane = 1;
  send.inputs = {{kAct0, kF0, graph::EdgeKind::kSameMicroBatch}};
  p.launches.push_back(send);
  return plan;
}

TEST(Schedule, ChannelsAreToldOfCompletionAndGatedOnlyWhereInputsDoNotImplyIt) {
  graph::Plan plan = with_channel(2);
  auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
  const LaunchWiring& f0 = schedule->launches[kF0];
  EXPECT_TRUE(f0.feeds_channel);
  EXPECT_FALSE(f0.feeds_other_lane);
  ASSERT_EQ(f0.consumers[0].size(), 3U);
  EXPECT_TRUE(f0.consumers[0][2].on_completion);
  EXPECT_EQ(schedule->launches[5].awaited, (std::vector<int32_t>{0}));  // start follows from f0

  plan.programs[0].lanes[1].order = {{5, 0, 2}, {5, 1, 5}};  // behind f1 each time
  schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->launches[5].awaited, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(schedule->lanes[0][2].opens, (std::vector<Gate>{{5, 1, 0}}));
  EXPECT_EQ(schedule->lanes[0][6].opens, (std::vector<Gate>{{5, 1, 1}}));

  plan.programs[0].launches[5].inputs = {{kParam, graph::kNoLaunch, graph::EdgeKind::kState}};
  plan.programs[0].lanes[1].order = {{5, 0, 0}, {5, 1, 5}};
  schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->opens_at_begin, (std::vector<Gate>{{5, 1, 0}}));
  EXPECT_LT(schedule->lanes[1][0].order, schedule->lanes[0][1].order);
  EXPECT_GT(schedule->lanes[1][1].order, schedule->lanes[0][6].order);
  EXPECT_LT(schedule->lanes[1][1].order, schedule->lanes[0][7].order);
}

TEST(Schedule, AReaderOnAnotherLaneWaitsForEveryWriter) {
  graph::Plan plan = with_channel(2);
  graph::RankProgram& p = plan.programs[0];
  p.launches[kF1].inputs.push_back({kAccum, graph::kNoLaunch, graph::EdgeKind::kState});
  p.launches[kF1].outputs.push_back(kAccum);  // beside b
  p.launches[5].inputs = {{kAccum, kB, graph::EdgeKind::kLastMicroBatch}};
  p.launches[5].phase = graph::Phase::kReduce;
  p.lanes[1].order = {{5, 0, 6}};
  const auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
  EXPECT_EQ(schedule->launches[5].awaited, (std::vector<int32_t>{0, 1}));
  const auto& of_f1 = schedule->launches[kF1].consumers[1];
  ASSERT_EQ(of_f1.size(), 1U);
  EXPECT_EQ(of_f1[0].input, 1);
  EXPECT_EQ(schedule->launches[kReduceLaunch].awaited.size(), 1U);  // its own lane orders them
}

TEST(Schedule, APreparedInputServesEveryMicroBatch) {
  graph::Plan plan = toy_plan(3);
  graph::RankProgram& p = plan.programs[0];
  p.launches[kF0].phase = graph::Phase::kPrepare;
  p.launches[kF0].inputs.pop_back();
  p.launches[kF1].inputs[0].edge = graph::EdgeKind::kPrepared;
  p.lanes[0].order = {{kF0, 0}, {kF1, 0}, {kF1, 1}, {kF1, 2}};
  const auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
  EXPECT_EQ(schedule->launches[kF0].num_firings, 1);
  EXPECT_EQ(schedule->launches[kF0].consumers[0][0].edge, graph::EdgeKind::kPrepared);
  EXPECT_EQ(schedule->launches[kF0].consumers[0][0].num_firings, 3);
}

TEST(Schedule, WithoutBatchesTheFeedLearnsOnceAStep) {
  graph::Plan plan = toy_plan(2);
  graph::RankProgram& p = plan.programs[0];
  p.buffers[kTokensBuffer].kind = graph::BufferKind::kActivation;
  p.launches[kF0].inputs.pop_back();
  const auto schedule = build_schedule(plan, 0);
  ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
  EXPECT_EQ(schedule->feed_positions, (std::vector<int32_t>{0}));
  EXPECT_EQ(schedule->lanes[0][0].kind, ItemKind::kFeed);
  EXPECT_TRUE(schedule->lanes[0][0].leases.empty());
  EXPECT_EQ(schedule->lanes[0][4].kind, ItemKind::kLaunch);
}

TEST(Schedule, RefusesAVoteThatWaitsForTheCommit) {
  graph::Plan plan = with_channel(1);
  plan.programs[0].lanes[1].order = {{5, 0, 5}};  // behind the update
  EXPECT_EQ(build_schedule(plan, 0).status().code(), Code::kInvalidPlan);
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
