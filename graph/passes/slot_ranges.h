#pragma once
#include "graph/passes/plan_memory.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace sgactor::graph {

/// When each slot of each buffer is in use, in places of the program order: by buffer, then slot;
/// empty for persistent and batch buffers. Operands of what communicates count for `slack` firings
/// of lane 0 longer, its results from the firing of lane 0 that runs when it starts.
std::vector<std::vector<LiveRange>> slot_ranges(const RankProgram& program, int32_t slack = 2);

/// First and last place at which a micro-batch's content of a buffer is in use; {-1, -1}: not.
using UseRange = std::pair<int32_t, int32_t>;
/// The same by micro-batch instead of slot. What kPrepare makes is micro-batch 0's.
std::vector<std::vector<UseRange>> micro_batch_ranges(const RankProgram& program, int32_t slack);

}  // namespace sgactor::graph
