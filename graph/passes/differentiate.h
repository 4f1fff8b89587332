#pragma once
#include "graph/ir/graph.h"

namespace sgactor::graph {

/// Appends the backward graph to a forward graph with one kLoss output: reverse-mode over the op
/// table's gradient rules (Griewank and Walther, "Evaluating Derivatives", ch. 3). Ops of the
/// backward get phase kBackward and the segment of the op that they differentiate. A parameter used
/// by several ops gets one gradient a *use* (an operand position in a segment), in order of use,
/// never their sum: outputs kAccumulator "grad/<p>" for its first use, "grad/<p>#1" … for further
/// ones, so that a tied embedding sums the same with and without a pipeline. These outputs are
/// plain gradients; accumulate_microbatches turns them into accumulators. Errors: kInvalidPlan if
/// an op on the path has no gradient rule, naming it.
Result<Graph> differentiate(const Graph& forward);

/// Adds an input kAccumulator of the same name for each gradient output and for the loss ("loss"),
/// and replaces the output by accumulate(input, gradient). The first micro-batch adds to zero. A
/// gradient that a reduce_scatter makes (data_parallel.h) stays as it is.
Result<Graph> accumulate_microbatches(const Graph& training);

}  // namespace sgactor::graph
