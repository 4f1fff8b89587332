#pragma once
#include "actors/core/schedule.h"
#include "graph/base/status.h"

#include <cstdint>
#include <vector>

namespace sgactor::actors {

/// A rank's way through a step as its worker sees it: begin; each lane runs up to its commit item;
/// when all have come so far and their work is complete the rank votes; on COMMIT the lanes go on;
/// when all have reached their end the step is done. Lanes without a commit item (forward only) go
/// straight to the end. One caller at a time.
class RankStepCore {
 public:
  RankStepCore() = default;
  explicit RankStepCore(const Schedule& schedule);

  enum class Event : uint8_t {
    kNone = 0,
    kVote,  ///< everything before the commit is complete on every lane: vote for the step
    kDone,  ///< everything is complete
  };
  /// Errors: kInternal if a step is under way, or `step` was begun before.
  Status begin(int64_t step);
  /// The lane's work before its commit or end item is complete. Errors: kInternal if that does not
  /// fit where the lane stands.
  Result<Event> on_lane_complete(int32_t lane, int64_t step, ItemKind reached);
  /// COMMIT(step) has been announced. False: already known (sent again), do nothing. Errors:
  /// kInternal if this rank has not voted for it.
  Result<bool> on_commit(int64_t step);

  /// Has come to its vote for step(), and has not heard of the commit.
  [[nodiscard]] bool awaits_commit() const { return voted_ && committed_ < step_; }
  [[nodiscard]] bool running() const { return running_; }
  [[nodiscard]] int64_t step() const { return step_; }

 private:
  enum class At : uint8_t { kParked = 0, kRunning, kCommit };
  std::vector<bool> has_commit_;
  std::vector<At> lanes_;
  bool running_ = false;
  bool voted_ = false;
  int64_t step_ = -1;
  int64_t committed_ = -1;
};

}  // namespace sgactor::actors
