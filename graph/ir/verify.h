#pragma once
#include "graph/ir/graph.h"

namespace sgactor::graph {

/// Checks every rule of the IR: ids in range, SSA, topological order, arity, attributes (names,
/// types, none missing), shapes and dtypes by the table's rules, in-place rules (a value updated in
/// place, and its views, have no later use and are no outputs), phases (no op runs in an earlier
/// phase than its operands' producers), segments in range and listed once, unique names a role,
/// parameters, moments and accumulators that keep their type from input to output. Errors:
/// kInvalidPlan naming the op ("op 17 matmul %41") and the rule. Linear in the graph's size. Safe
/// on untrusted graphs.
Status verify(const Graph& graph);

}  // namespace sgactor::graph
