#pragma once
#include "graph/ir/graph.h"

#include <string>
#include <vector>

namespace sgactor::graph {

/// Rewrites groups of primitive ops into fused ones, each pattern a row of one table (name, what it
/// saves, whether its result is exact): matmul + accumulate -> matmul_accumulate; scores, mask,
/// softmax, values (and their gradient) -> flash_attention; silu * up -> swiglu; residual add +
/// norm -> add_rms_norm; the optimizer's chain -> adamw.
struct FusionReport {
  std::string pattern;
  int32_t count = 0;
};
Result<Graph> fuse_ops(const Graph& graph, std::vector<FusionReport>* report = nullptr);

}  // namespace sgactor::graph
