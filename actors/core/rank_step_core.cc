#include "actors/core/rank_step_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {

RankStepCore::RankStepCore(const Schedule& schedule) {
  for (const std::vector<LaneItem>& items : schedule.lanes) {
    has_commit_.push_back(std::any_of(items.begin(), items.end(), [](const LaneItem& item) {
      return item.kind == ItemKind::kCommit;
    }));
  }
  lanes_.assign(has_commit_.size(), At::kParked);
}

Status RankStepCore::begin(int64_t step) {
  if (running_ || step <= step_) {
    return internal_error(fmt::format("step {} begun at step {}", step, step_));
  }
  running_ = true;
  voted_ = false;
  step_ = step;
  std::fill(lanes_.begin(), lanes_.end(), At::kRunning);
  return {};
}

Result<RankStepCore::Event> RankStepCore::on_lane_complete(int32_t lane, int64_t step,
                                                           ItemKind reached) {
  if (!running_ || step != step_ || lane < 0 || static_cast<size_t>(lane) >= lanes_.size() ||
      lanes_[static_cast<size_t>(lane)] != At::kRunning) {
    return internal_error(
        fmt::format("lane {} of step {} is not running at step {}", lane, step, step_));
  }
  At& at = lanes_[static_cast<size_t>(lane)];
  at = reached == ItemKind::kCommit ? At::kCommit : At::kParked;
  const bool all_stand =
      std::none_of(lanes_.begin(), lanes_.end(), [](At a) { return a == At::kRunning; });
  if (!all_stand) return Event::kNone;
  const bool commit_open =
      std::any_of(lanes_.begin(), lanes_.end(), [](At a) { return a == At::kCommit; });
  if (commit_open) {
    voted_ = true;
    return Event::kVote;
  }
  running_ = false;
  return Event::kDone;
}

Result<bool> RankStepCore::on_commit(int64_t step) {
  if (step <= committed_) return false;
  if (!voted_ || step != step_) {
    return internal_error(fmt::format("commit of step {} without a vote at step {}", step, step_));
  }
  committed_ = step;
  for (At& at : lanes_) {
    if (at == At::kCommit) at = At::kRunning;
  }
  return true;
}

}  // namespace sgactor::actors
