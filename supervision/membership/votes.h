#pragma once
#include "supervision/membership/guards.h"
#include "supervision/membership/world.h"

#include <cstdint>
#include <vector>

namespace sgactor::supervision {

/// "I could update now": everything of `step` before the commit is done on this life of the rank,
/// and its mirror holds what is needed to redo the update.
struct Vote {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
  int64_t step = 0;
};

/// Votes for the one open step. The quorum is all ranks' current incarnations. Pure.
class Votes {
 public:
  explicit Votes(ProtocolGuards guards = {}) : guards_(guards) {}

  enum class Outcome : uint8_t {
    kCounted = 0,
    kAll,       ///< this one was missing: the step may commit
    kRepeated,  ///< counted before, or the step is committed
    kStale,     ///< of another life, another generation, or no rank of this job
    kAhead,  ///< for a step beyond the open one: the voter knows a commit that this world does not
  };
  Outcome on_vote(const Vote& vote, const World& world) {
    const auto rank = static_cast<size_t>(vote.rank);
    if (vote.rank < 0 || rank >= world.ranks.size()) return Outcome::kStale;
    const bool current =
        vote.generation == world.generation && vote.incarnation == world.ranks[rank].incarnation;
    if (guards_.fencing && guards_.vote_generation && !current) return Outcome::kStale;
    if (vote.step <= world.committed) return Outcome::kRepeated;
    if (vote.step > world.committed + 1) return Outcome::kAhead;
    voted_.resize(world.ranks.size(), false);
    if (voted_[rank]) return Outcome::kRepeated;
    voted_[rank] = true;
    for (const bool v : voted_) {
      if (!v) return Outcome::kCounted;
    }
    return Outcome::kAll;
  }
  /// The open step has committed.
  void on_commit() { voted_.assign(voted_.size(), false); }
  /// The membership has changed: a vote says "my mirror holds it", and the dead rank's says "I
  /// could update", neither of which is known now. All vote again under the new generation.
  void on_membership() {
    if (guards_.forget_votes) voted_.assign(voted_.size(), false);
  }
  /// Ranks whose vote is missing, ascending: what a stall report names.
  [[nodiscard]] std::vector<RankId> missing(const World& world) const {
    std::vector<RankId> out;
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      if (r >= voted_.size() || !voted_[r]) out.push_back(static_cast<RankId>(r));
    }
    return out;
  }

 private:
  ProtocolGuards guards_;
  std::vector<bool> voted_;
};

}  // namespace sgactor::supervision
