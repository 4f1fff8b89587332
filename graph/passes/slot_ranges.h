#pragma once
#include "graph/passes/plan_memory.h"
#include "graph/plan/plan.h"

#include <vector>

namespace sgactor::graph {

/// When each slot of each buffer is in use, in places of the program order: by buffer, then slot;
/// empty for persistent and batch buffers. Operands of what communicates count for `slack` firings
/// of lane 0 longer, its results from the firing of lane 0 that runs when it starts.
std::vector<std::vector<LiveRange>> slot_ranges(const RankProgram& program, int32_t slack = 2);

}  // namespace sgactor::graph
