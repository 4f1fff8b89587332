#pragma once
#include "graph/ir/graph.h"

#include <string>
#include <vector>

namespace sgactor::graph {

/// Rewrites groups of primitive ops into fused ones, each pattern a row of one table (name, what it
/// saves, whether its result is exact): matmul + accumulate -> matmul_accumulate; scores, mask,
/// softmax, values (and their gradient) -> flash_attention; silu * up -> swiglu; residual add +
/// norm -> add_rms_norm; sum of a product and a value -> matmul with what it is added to, where
/// products are narrow; head matmul, loss and their gradients -> linear_cross_entropy_grad; sums
/// of products in f32 -> matmul_accumulate; what pointwise chains remain -> fused_pointwise; the
/// optimizer's chain -> adamw.
struct FusionReport {
  std::string pattern;
  int32_t count = 0;
};
struct FusionOptions {
  std::vector<std::string> disabled;  ///< names of patterns to leave out
  /// Products will be narrow (infer_precision): sums of them are then not kept in f32 in place, but
  /// rounded once, by the product that adds last.
  bool narrow = false;
  /// And their operands 8 bits (infer_precision_f8): gradients of one value are then added by a
  /// pass of their own.
  bool eight_bits = false;
};
/// Deterministic. Errors: kInvalidArgument: a disabled pattern that does not exist.
Result<Graph> fuse_ops(const Graph& graph, std::vector<FusionReport>* report = nullptr,
                       const FusionOptions& options = {});

}  // namespace sgactor::graph
