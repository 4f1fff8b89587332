#include "actors/core/rank_step_core.h"

#include "tests/unit/actors/toy_plan.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

using namespace testing_support;
using Event = RankStepCore::Event;

TEST(RankStepCore, VotesThenEnds) {
  RankStepCore core(build_schedule(toy_plan(2), 0).value());
  ASSERT_TRUE(core.begin(1).ok());
  EXPECT_FALSE(core.begin(2).ok());
  EXPECT_FALSE(core.on_commit(1).ok());
  EXPECT_EQ(*core.on_lane_complete(0, 1, ItemKind::kCommit), Event::kVote);
  EXPECT_FALSE(core.on_lane_complete(0, 1, ItemKind::kEnd).ok());  // not before the commit
  EXPECT_TRUE(*core.on_commit(1));
  EXPECT_FALSE(*core.on_commit(1));  // sent again
  EXPECT_EQ(*core.on_lane_complete(0, 1, ItemKind::kEnd), Event::kDone);
  EXPECT_FALSE(core.running());
  EXPECT_FALSE(core.begin(1).ok());
  EXPECT_TRUE(core.begin(2).ok());
}

TEST(RankStepCore, WaitsForEveryLane) {
  Schedule schedule;
  schedule.lanes = {{{ItemKind::kCommit, -1, 0, {}}, {ItemKind::kEnd, -1, 0, {}}},
                    {{ItemKind::kCommit, -1, 0, {}}, {ItemKind::kEnd, -1, 0, {}}},
                    {{ItemKind::kEnd, -1, 0, {}}}};
  RankStepCore core(schedule);
  ASSERT_TRUE(core.begin(5).ok());
  EXPECT_EQ(*core.on_lane_complete(1, 5, ItemKind::kCommit), Event::kNone);
  EXPECT_EQ(*core.on_lane_complete(2, 5, ItemKind::kEnd), Event::kNone);
  EXPECT_EQ(*core.on_lane_complete(0, 5, ItemKind::kCommit), Event::kVote);
  ASSERT_TRUE(*core.on_commit(5));
  EXPECT_EQ(*core.on_lane_complete(0, 5, ItemKind::kEnd), Event::kNone);
  EXPECT_EQ(*core.on_lane_complete(1, 5, ItemKind::kEnd), Event::kDone);
}

TEST(RankStepCore, ForwardOnlyNeedsNoCommit) {
  Schedule schedule;
  schedule.lanes = {{{ItemKind::kEnd, -1, 0, {}}}};
  RankStepCore core(schedule);
  ASSERT_TRUE(core.begin(1).ok());
  EXPECT_EQ(*core.on_lane_complete(0, 1, ItemKind::kEnd), Event::kDone);
}

}  // namespace
}  // namespace sgactor::actors
