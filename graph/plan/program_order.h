#pragma once
#include "graph/plan/plan.h"

#include <cstdint>
#include <vector>

namespace sgactor::graph {

struct OrderedFiring {
  int32_t lane = 0;
  int32_t position = 0;  ///< in the lane's order
};

/// The firings of all lanes as one list: lane 0 in its order; a firing of another lane behind the
/// first `start` of lane 0, those with equal starts by micro-batch and launch. In a verified plan
/// the step can run in this order, and leases of overlapping bytes are granted in it. Starts beyond
/// lane 0's end count as its end.
std::vector<OrderedFiring> program_order(const RankProgram& program);

/// Calls `touch(buffer, firing, index, is_input)` for every buffer that a firing reads or writes,
/// in program order; `index` is the place in that order.
template <class Touch>
void for_each_touch(const RankProgram& program, Touch touch) {
  int32_t index = 0;
  for (const OrderedFiring& at : program_order(program)) {
    const Firing& firing =
        program.lanes[static_cast<size_t>(at.lane)].order[static_cast<size_t>(at.position)];
    const Launch& launch = program.launches[static_cast<size_t>(firing.launch)];
    for (const LaunchInput& input : launch.inputs) touch(input.buffer, firing, index, true);
    for (BufferId output : launch.outputs) touch(output, firing, index, false);
    if (launch.workspace != kNoBuffer) touch(launch.workspace, firing, index, false);
    ++index;
  }
}

}  // namespace sgactor::graph
