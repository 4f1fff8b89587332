#include "actors/core/step_core.h"

#include <gtest/gtest.h>

#include <string>

namespace sgactor::actors {
namespace {

using Action = StepCore::Action;

/// What a run does: a letter an action, with the step. `stop_after`: the stop comes then.
std::string run(const StepPolicy& policy, int64_t stop_after = -1,
                const TakenOver* taken = nullptr) {
  StepCore core(policy);
  if (taken != nullptr) core.take_over(*taken);
  if (taken != nullptr && taken->owes_done) {
    EXPECT_TRUE(core.on_step_done(core.step()).ok());
  }
  std::string out;
  while (true) {
    const bool stop = stop_after >= 0 && core.last_done() >= stop_after;
    switch (core.next(stop)) {
      case Action::kBeginStep:
        out += std::to_string(core.step()) + " ";
        EXPECT_TRUE(core.on_step_done(core.step()).ok());
        break;
      case Action::kCheckpoint:
        out += "c" + std::to_string(core.last_done()) + " ";
        break;
      case Action::kMirror:
        out += "m" + std::to_string(core.last_done()) + " ";
        break;
      case Action::kValidate:
        out += "v" + std::to_string(core.last_done()) + " ";
        break;
      case Action::kFinish:
        return out + (core.interrupted() ? "interrupted" : "done");
    }
  }
}

TEST(StepCore, RunsToTheLastStep) {
  StepPolicy policy;
  policy.last_step = 3;
  EXPECT_EQ(run(policy), "1 2 3 done");
  policy.can_checkpoint = true;
  EXPECT_EQ(run(policy), "1 2 3 c3 done");
  policy.final_checkpoint = false;
  EXPECT_EQ(run(policy), "1 2 3 done");
}

TEST(StepCore, TakesCheckpointsAndValidatesAtIntervals) {
  StepPolicy policy;
  policy.first_step = 3;
  policy.last_step = 7;
  policy.can_checkpoint = true;
  policy.checkpoint_interval = 2;
  policy.can_validate = true;
  policy.validation_interval = 4;
  EXPECT_EQ(run(policy), "3 4 c4 v4 5 6 c6 7 c7 v7 done");
}

TEST(StepCore, AStopFinishesTheStepAndTakesACheckpoint) {
  StepPolicy policy;
  policy.last_step = 9;
  policy.can_checkpoint = true;
  policy.final_checkpoint = false;
  EXPECT_EQ(run(policy, 2), "1 2 c2 interrupted");
  policy.checkpoint_interval = 2;
  EXPECT_EQ(run(policy, 2), "1 2 c2 interrupted");
  EXPECT_EQ(run(policy, 0), "interrupted");
  EXPECT_EQ(run(policy, 9), "1 2 c2 3 4 c4 5 6 c6 7 8 c8 9 done");
}

TEST(StepCore, MirrorsAtIntervalsWhereNoCheckpointIs) {
  StepPolicy policy;
  policy.last_step = 6;
  policy.mirror_interval = 2;
  policy.can_checkpoint = true;
  policy.checkpoint_interval = 4;
  policy.final_checkpoint = false;
  EXPECT_EQ(run(policy), "1 2 m2 3 4 c4 5 6 done");
}

TEST(StepCore, APauseTakesAMirrorAndEnds) {
  StepPolicy policy;
  policy.last_step = 9;
  policy.mirror_interval = 4;
  StepCore core(policy);
  ASSERT_EQ(core.next(false), Action::kBeginStep);
  ASSERT_TRUE(core.on_step_done(1).ok());
  EXPECT_EQ(core.next(false, true), Action::kMirror);
  EXPECT_EQ(core.next(false, true), Action::kFinish);
  EXPECT_TRUE(core.paused());
  EXPECT_FALSE(core.interrupted());
}

TEST(StepCore, NothingLeftIsDone) {
  StepPolicy policy;
  policy.first_step = 5;
  policy.last_step = 4;
  policy.can_checkpoint = true;
  EXPECT_EQ(run(policy), "done");
}

TEST(StepCore, ACheckpointThatCameToNothingIsDueAfterTheNextStep) {
  StepPolicy policy;
  policy.last_step = 9;
  policy.can_checkpoint = true;
  policy.checkpoint_interval = 3;
  policy.final_checkpoint = false;
  StepCore core(policy);
  const auto do_step = [&] {
    EXPECT_EQ(core.next(false), Action::kBeginStep);
    EXPECT_TRUE(core.on_step_done(core.step()).ok());
  };
  for (int i = 0; i < 3; ++i) do_step();
  EXPECT_EQ(core.next(false), Action::kCheckpoint);
  EXPECT_EQ(core.next(false), Action::kBeginStep);
  core.redo_checkpoint();  // while step 4 is under way
  EXPECT_TRUE(core.on_step_done(4).ok());
  EXPECT_EQ(core.next(false), Action::kCheckpoint);
  do_step();
  do_step();
  EXPECT_EQ(core.next(false), Action::kCheckpoint) << "and at 6, as always";
}

TEST(StepCore, GoesOnWhereAnotherCoordinatorHasStopped) {
  StepPolicy policy;
  policy.last_step = 6;
  policy.can_checkpoint = policy.can_validate = true;
  policy.checkpoint_interval = 4;
  policy.mirror_interval = 2;
  policy.validation_interval = 4;
  TakenOver at;
  at.committed = 4;
  EXPECT_EQ(run(policy, -1, &at), "c4 v4 5 6 c6 v6 done");
  at.owes_done = true;
  EXPECT_EQ(run(policy, -1, &at), "c4 v4 5 6 c6 v6 done") << "its numbers come again first";
  at.validated = true;
  EXPECT_EQ(run(policy, -1, &at), "c4 5 6 c6 v6 done");
  at = {};
  at.committed = 2;
  EXPECT_EQ(run(policy, -1, &at), "m2 3 4 c4 v4 5 6 c6 v6 done");
  at.mirrored = true;
  EXPECT_EQ(run(policy, -1, &at), "3 4 c4 v4 5 6 c6 v6 done");
  at = {};
  at.committed = 4;
  at.begun = true;
  EXPECT_EQ(run(policy, -1, &at), "5 c5 6 c6 v6 done") << "one that is not whole is made up for";
  policy.checkpointed = 4;
  EXPECT_EQ(run(policy, -1, &at), "5 6 c6 v6 done");
  at.committed = 6;
  at.begun = false;
  policy.checkpointed = 6;
  at.validated = true;
  EXPECT_EQ(run(policy, -1, &at), "done");
}

TEST(StepCore, RefusesAStepThatIsNotOpen) {
  StepCore core(StepPolicy{});
  EXPECT_FALSE(core.on_step_done(1).ok());
  EXPECT_EQ(core.next(false), Action::kBeginStep);
  EXPECT_FALSE(core.on_step_done(2).ok());
}

TEST(StepCore, LossesAddUpAsATree) {
  const auto sum = [](const std::vector<float>& losses) { return tree_sum_losses(losses); };
  EXPECT_EQ(sum({}), 0.0F);
  EXPECT_EQ(sum({1.5F}), 1.5F);
  // (1 + 2^-24) + (2^-24 + 2^-24): left to right each small one would be lost.
  EXPECT_EQ(sum({1.0F, 0x1p-24F, 0x1p-24F, 0x1p-24F}), 1.0F + 0x1p-23F);
  EXPECT_EQ(sum({1.0F, 2.0F, 4.0F}), 7.0F);
}

}  // namespace
}  // namespace sgactor::actors
