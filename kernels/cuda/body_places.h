#pragma once
#include "kernels/cuda/lowering.h"

namespace sgactor::kernels::cuda {

// What a plan's places say to kernels that do the work of several ops, or need room.

/// Do two values share bytes?
bool overlap(const Lowering& low, graph::ValueId a, graph::ValueId b);

/// Is the value gone before op number `o`, whatever order the kernels run in? Makers that round
/// what they make run, and read, where it is rounded.
bool is_gone(const graph::Graph& body, graph::ValueId v, graph::OpId o);

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
