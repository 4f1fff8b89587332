#pragma once
#include "graph/ir/graph.h"

#include <vector>

namespace sgactor::graph {

/// Tools that passes share.

/// Copy without ops whose results nobody needs (outputs count as needs). Inputs stay. Removes
/// repeated constants and equal pure ops within a segment and phase (common subexpressions) where
/// `merge_equal`.
Graph clean_graph(const Graph& graph, bool merge_equal = true);

/// A subgraph of `graph`: the given ops in their order, with one input for each value defined
/// outside (in order of first use) and one output for each value used outside or by a graph output.
/// `inputs` and `outputs` receive the outer value of each. Roles and names of graph inputs and
/// outputs are kept; values between subgraphs become kActivation.
Graph extract_ops(const Graph& graph, const std::vector<OpId>& ops, std::vector<ValueId>* inputs,
                  std::vector<ValueId>* outputs);

}  // namespace sgactor::graph
