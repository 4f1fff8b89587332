#include "actors/core/step_core.h"

#include <fmt/format.h>

#include <utility>

namespace sgactor::actors {

StepCore::StepCore(const StepPolicy& policy)
    : policy_(policy),
      step_(policy.first_step - 1),
      last_done_(policy.first_step - 1),
      checkpointed_(policy.checkpointed >= 0 ? policy.checkpointed : policy.first_step - 1) {}

void StepCore::take_over(const TakenOver& at) {
  taken_over_ = at;
  step_ = at.committed;
  open_ = at.owes_done;
  last_done_ = at.owes_done ? at.committed - 1 : at.committed;
  if (!at.owes_done) set_due(at.committed);
}

StepCore::Action StepCore::next(bool stop, bool pause) {
  if (finished_) return Action::kFinish;
  if (stop && last_done_ < policy_.last_step) {
    interrupted_ = true;
    if (last_done_ != checkpointed_) checkpoint_due_ = true;
  } else if (pause && last_done_ < policy_.last_step && !paused_) {
    paused_ = true;
    mirror_due_ = last_done_ >= policy_.first_step;
  }
  if (checkpoint_due_) {
    checkpoint_due_ = false;
    if (policy_.can_checkpoint && checkpointed_ != last_done_) {
      checkpointed_ = last_done_;
      mirror_due_ = false;
      return Action::kCheckpoint;
    }
  }
  if (mirror_due_) {
    mirror_due_ = false;
    if (checkpointed_ != last_done_) return Action::kMirror;
  }
  if (validation_due_) {
    validation_due_ = false;
    if (!interrupted_) return Action::kValidate;
  }
  if (interrupted_ || paused_ || last_done_ >= policy_.last_step) {
    finished_ = true;
    return Action::kFinish;
  }
  step_ = last_done_ + 1;
  open_ = true;
  return Action::kBeginStep;
}

Status StepCore::on_step_done(int64_t step) {
  if (!open_ || step != step_) {
    return internal_error(fmt::format("step {} is done, step {} is open", step, step_));
  }
  open_ = false;
  last_done_ = step;
  set_due(step);
  return {};
}

void StepCore::set_due(int64_t step) {
  const bool last = step == policy_.last_step;
  const auto due = [step](int64_t interval) { return interval > 0 && step % interval == 0; };
  checkpoint_due_ = due(policy_.checkpoint_interval) || (last && policy_.final_checkpoint) ||
                    std::exchange(redo_checkpoint_, false);
  mirror_due_ = due(policy_.mirror_interval) && !last;
  validation_due_ = policy_.can_validate && policy_.validation_interval > 0 &&
                    (due(policy_.validation_interval) || last);
  if (step != taken_over_.committed) return;
  mirror_due_ = mirror_due_ && !taken_over_.begun && !taken_over_.mirrored;
  validation_due_ = validation_due_ && !taken_over_.begun && !taken_over_.validated;
  // The state of this step is about to go: what is not whole on disk is due after the next one.
  if (taken_over_.begun && checkpoint_due_ && checkpointed_ != step) {
    checkpoint_due_ = false;
    redo_checkpoint_ = true;
  }
}

void StepCore::redo_checkpoint() {
  redo_checkpoint_ = true;
  checkpointed_ = policy_.checkpointed >= 0 ? policy_.checkpointed : policy_.first_step - 1;
}

float tree_sum_losses(std::span<const float> losses) {
  if (losses.empty()) return 0;
  std::vector<float> level(losses.begin(), losses.end());
  while (level.size() > 1) {
    std::vector<float> up;
    for (size_t i = 0; i < level.size(); i += 2) {
      up.push_back(i + 1 < level.size() ? level[i] + level[i + 1] : level[i]);
    }
    level = std::move(up);
  }
  return level[0];
}

}  // namespace sgactor::actors
