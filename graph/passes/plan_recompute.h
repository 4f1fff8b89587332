#pragma once
#include "graph/ir/graph.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace sgactor::graph {

/// What the backward pass computes again instead of reading what the forward pass left.
enum class RecomputeMode : uint8_t {
  kNone = 0,
  kSelective,  ///< what costs least for the bytes it frees
  kFull,       ///< all but what crosses from segment to segment
};
std::string_view to_string(RecomputeMode mode);
std::optional<RecomputeMode> parse_recompute_mode(std::string_view text);

struct RecomputeOptions {
  RecomputeMode mode = RecomputeMode::kNone;
  /// Most bytes that a rank's arena and `scratch_bytes` may take; 0: no limit. kSelective then
  /// recomputes just enough to stay below it; without a limit, all that costs less than
  /// kRecomputeFlopsPerByte.
  int64_t memory_budget_bytes = 0;
  /// That the device keeps beside the arena: they and it share the budget.
  int64_t scratch_bytes = 0;
};
/// Floating-point operations that a byte of activations is worth where no budget says otherwise:
/// about what a core does in the time in which memory moves a byte. Frees what pointwise ops and
/// norms made; keeps the results of matmuls and attention.
inline constexpr double kRecomputeFlopsPerByte = 16;

struct RecomputeReport {
  int64_t saved_before_bytes = 0;  ///< activations of one micro-batch from forward to backward
  int64_t saved_after_bytes = 0;
  double recomputed_flops = 0;  ///< a micro-batch
  double forward_flops = 0;
  int32_t num_recomputed = 0;  ///< ops, but for views and constants
  int64_t least_bytes = 0;     ///< where the budget cannot be met: the smallest arena found; else 0
};

/// Memory of the plan that a training graph would get.
using MeasurePlan = std::function<Result<MemoryStats>(const Graph& training)>;

/// Copy in which backward ops read clones of forward ops (phase kBackward, in front of their first
/// reader, in its segment) in place of saved activations. A clone is the same op on the same bits,
/// so every result keeps its bits. Never cloned: updates in place and communication; nor ops whose
/// results another segment reads, since those are kept in any case. `measure` is called only where
/// there is a budget. Deterministic.
/// Errors: kOutOfMemory: the budget cannot be met in this mode; says the least budget that would
/// do, rounded up, in which mode, and what takes it. Those of `measure`.
Result<Graph> plan_recompute(const Graph& training, const RecomputeOptions& options,
                             const MeasurePlan& measure, RecomputeReport* report = nullptr);

}  // namespace sgactor::graph
