#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <string>

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

/// What sums over the micro-batches of a step start from.
struct SumOptions {
  /// There is one micro-batch, so that a sum starts from a constant zero instead of an accumulator
  /// of the run: nothing has to be zeroed before the step or read in it.
  bool one_micro_batch = false;
  /// And no pipeline: of a parameter with two uses, the gradient of the first is added to that of
  /// the second where it is made, in one accumulator. The bits are those of their later sum.
  bool one_stage = false;
  /// And no data parallelism: elements a chunk of the gradient norm (build_update.h). The chunks of
  /// a gradient of which there is one sum are squared and summed right behind it, while a cache may
  /// still hold it: outputs kAccumulator "squares/<p>". 0: the update does that.
  int64_t norm_chunk = 0;
};
/// Of the chunk sums of a parameter's gradient.
inline std::string squares_name(const std::string& parameter) { return "squares/" + parameter; }

/// Adds an input kAccumulator of the same name for each gradient output and for the loss ("loss"),
/// and replaces the output by accumulate(input, gradient). The first micro-batch adds to zero. A
/// gradient that a reduce_scatter makes (data_parallel.h) stays as it is.
Result<Graph> accumulate_microbatches(const Graph& training, const SumOptions& options = {});

}  // namespace sgactor::graph
