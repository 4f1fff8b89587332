#pragma once
#include "kernels/cuda/lowering.h"

namespace sgactor::kernels::cuda {

// What a plan's places say to kernels that do the work of several ops, or need room.

/// Do two values share bytes?
bool overlap(const Lowering& low, graph::ValueId a, graph::ValueId b);

/// Is the value gone before op number `o`, whatever order the kernels run in? Makers that round
/// what they make run, and read, where it is rounded.
bool is_gone(const graph::Graph& body, graph::ValueId v, graph::OpId o);

/// Does the op start its sum from a constant zero? Its accumulator is then not read: with one
/// micro-batch a step nothing has been added before.
bool starts_from_zero(const graph::Graph& body, const graph::Op& op);

/// Is the constant one that nobody reads, since it only says so?
bool is_zero_start(const graph::Graph& body, const graph::Op& constant);

/// The accumulate op that is all that becomes of what a scatter_add makes, if its kernel may add
/// the rows to the accumulator itself; kNoOp: it has to make a table of its own.
graph::OpId accumulation_of_rows(const Lowering& low, const graph::Op& scatter);

/// Bytes of the workspace that nothing needs while an op runs.
struct FreeBytes {
  int64_t bytes = 0;
  graph::ValueId anchor = graph::kNoValue;  ///< a value of the workspace
  int64_t from_anchor = 0;                  ///< where they begin, from where the anchor does

  [[nodiscard]] std::byte* at(const Frame& f) const { return f.values[anchor] + from_anchor; }
};
/// The largest gap between places while `op` runs: plans leave one for the head's block of logits
/// (plan_memory). 0 bytes where no value lies in the workspace.
FreeBytes largest_gap(const Lowering& low, const graph::Op& op);

}  // namespace sgactor::kernels::cuda
