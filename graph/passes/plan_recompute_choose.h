#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sgactor::graph {

/// The decision part of plan_recompute: pure numbers, no graph.

/// A forward op of a segment, as far as the decision goes. Ops stand in topological order.
struct RecomputeOp {
  int64_t bytes = 0;              ///< that keeping its results takes
  double flops = 0;               ///< operations that computing it again costs
  bool needed = false;            ///< the backward pass reads it
  bool fixed = false;             ///< cannot be computed again: kept
  bool free = false;              ///< view or constant: never kept, computed again at no cost
  std::vector<int32_t> operands;  ///< earlier ops of the segment whose results it reads
  friend bool operator==(const RecomputeOp&, const RecomputeOp&) = default;
};
using RecomputeProblem = std::vector<RecomputeOp>;

/// One way to decide a segment. `again[i]`: op i is computed again; else it is kept or, where
/// nothing needs it, gone after the forward pass.
struct RecomputeChoice {
  int64_t bytes = 0;
  double flops = 0;
  std::vector<bool> again;
};

/// Every choice that no other beats in both bytes and flops, by rising flops and falling bytes; the
/// first computes nothing again but what is free.
///
/// Keep, compute again or drop is decided op by op in order; choices that leave the same ops
/// available to later ones compete, and those beaten in both numbers are dropped (dominance, as
/// Nemhauser and Ullmann, "Discrete dynamic programming and capital allocation", 1969, for the
/// knapsack). Optimal on any graph, a chain above all, where one op is in view at a time, as long
/// as fewer than kMaxChoices choices compete; beyond that every second one is thinned out.
std::vector<RecomputeChoice> choose_recompute(const RecomputeProblem& problem);
inline constexpr size_t kMaxChoices = 4096;

/// All that is needed computed again, with what that needs, but for what is fixed.
RecomputeChoice recompute_everything(const RecomputeProblem& problem);

/// Ways to decide several segments: option `options[s]` of each segment s's choices.
struct RecomputeCombination {
  int64_t bytes = 0;
  double flops = 0;
  std::vector<int32_t> options;
};
/// The undominated sums of one choice a segment, by rising flops; thinned beyond kMaxChoices, and
/// of a segment's choices 64 at most, evenly taken, with the first and the last.
std::vector<RecomputeCombination> combine_choices(
    const std::vector<const std::vector<RecomputeChoice>*>& segments);

}  // namespace sgactor::graph
