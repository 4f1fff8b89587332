#pragma once
#include "graph/ir/graph.h"

namespace sgactor::graph {

/// Checks every rule of the IR: ids in range, SSA, topological order, arity, attributes (names,
/// types, none missing), shapes and dtypes by the table's rules, in-place rules (a value updated in
/// place has no later use), unique names a role. Errors: kInvalidPlan naming the op ("op 17 matmul
/// %41") and the rule. Linear in the graph's size. Safe on untrusted graphs.
Status verify(const Graph& graph);

}  // namespace sgactor::graph
