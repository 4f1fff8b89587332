#include "actors/core/commit_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {

CommitCore::CommitCore(std::vector<int64_t> incarnations, int64_t generation, int64_t committed)
    : incarnations_(std::move(incarnations)),
      voted_(incarnations_.size(), false),
      generation_(generation),
      committed_(committed) {}

Result<CommitCore::Vote> CommitCore::on_vote(int32_t rank, int64_t incarnation, int64_t generation,
                                             int64_t step) {
  if (rank < 0 || rank >= num_ranks()) {
    return internal_error(fmt::format("vote of rank {} of {}", rank, num_ranks()));
  }
  if (generation != generation_ || incarnation != this->incarnation(rank)) return Vote::kStale;
  if (step <= committed_) return Vote::kRepeated;
  if (step != committed_ + 1) {
    return internal_error(
        fmt::format("rank {} votes for step {} after step {}", rank, step, committed_));
  }
  if (voted_[static_cast<size_t>(rank)]) return Vote::kRepeated;
  voted_[static_cast<size_t>(rank)] = true;
  const bool all = std::all_of(voted_.begin(), voted_.end(), [](bool v) { return v; });
  return all ? Vote::kAll : Vote::kCounted;
}

CommitRecord CommitCore::record() const { return {committed_ + 1, generation_, incarnations_}; }

Status CommitCore::on_durable(int64_t step) {
  const bool all = std::all_of(voted_.begin(), voted_.end(), [](bool v) { return v; });
  if (step != committed_ + 1 || !all) {
    return internal_error(fmt::format("step {} cannot commit after step {}", step, committed_));
  }
  committed_ = step;
  std::fill(voted_.begin(), voted_.end(), false);
  return {};
}

bool CommitCore::adopt(int32_t rank, int64_t incarnation, int64_t generation) {
  if (rank < 0 || rank >= num_ranks() || incarnation <= this->incarnation(rank)) return false;
  incarnations_[static_cast<size_t>(rank)] = incarnation;
  voted_[static_cast<size_t>(rank)] = false;
  generation_ = std::max(generation_, generation);
  return true;
}

}  // namespace sgactor::actors
