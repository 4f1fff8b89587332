#pragma once
#include "graph/base/status.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sgactor::actors {

/// What the coordinator writes to its journal before it tells anybody.
struct CommitRecord {
  int64_t step = 0;
  int64_t generation = 0;
  std::vector<int64_t> incarnations;  ///< of the logical ranks that voted
  /// Where replicas stand for lost ranks: bits of each rank's loss in the step, as an f32; -1: it
  /// has none. Empty: not known.
  std::vector<int64_t> loss_bits = {};
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};

/// Votes of the logical ranks' current incarnations and the commits that follow. Steps commit in
/// order, one at a time: all vote, the record becomes durable, the commit is announced. A vote of
/// an earlier life of a rank, or of another generation, does not count. Repeats change nothing. One
/// caller at a time.
class CommitCore {
 public:
  CommitCore() = default;
  /// `committed` is the last step that is committed already (0: none).
  CommitCore(std::vector<int64_t> incarnations, int64_t generation, int64_t committed);

  enum class Vote : uint8_t {
    kCounted = 0,
    kAll,       ///< the last one missing: make record() durable
    kRepeated,  ///< voted before, or the step is committed: tell the rank again
    kStale,     ///< of another life or generation
  };
  /// Errors: kInternal for a step that is not the next one.
  Result<Vote> on_vote(int32_t rank, int64_t incarnation, int64_t generation, int64_t step);
  /// Pre: on_vote has returned kAll for the open step.
  [[nodiscard]] CommitRecord record() const;
  /// What stands now: written when a fence has changed it, before anybody is told.
  [[nodiscard]] CommitRecord standing() const { return {committed_, generation_, incarnations_}; }
  /// The record of `step` is on disk: it is committed and may be announced. Errors: kInternal if
  /// not all have voted.
  Status on_durable(int64_t step);
  /// A new life takes over a rank: its vote for the open step is forgotten, in one go with the new
  /// numbers. False, and nothing changes, if `incarnation` is not higher.
  bool adopt(int32_t rank, int64_t incarnation, int64_t generation);
  /// Votes of this generation count from now on; those that are there stay. Never goes back.
  void fence(int64_t generation) { generation_ = std::max(generation_, generation); }

  [[nodiscard]] int64_t committed() const { return committed_; }
  [[nodiscard]] int64_t generation() const { return generation_; }
  [[nodiscard]] int64_t incarnation(int32_t rank) const {
    return incarnations_[static_cast<size_t>(rank)];
  }
  [[nodiscard]] int32_t num_ranks() const { return static_cast<int32_t>(incarnations_.size()); }

 private:
  std::vector<int64_t> incarnations_;
  std::vector<bool> voted_;
  int64_t generation_ = 0;
  int64_t committed_ = 0;
};

}  // namespace sgactor::actors
