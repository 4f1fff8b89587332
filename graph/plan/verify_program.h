#pragma once
#include "graph/plan/plan.h"

#include <vector>

namespace sgactor::graph {

/// Part of verify_structure: buffers, launches, edges and lane orders of one program. Pre: the
/// plan's subgraphs passed their checks. Errors: kInvalidPlan. Linear in launches and firings times
/// the number of lanes.
Status verify_program(const Plan& plan, const RankProgram& program);

/// Part of verify_structure, for plans with groups: ranks of one pipeline stage run one program, so
/// that all members of a group along dp or tp have the same operations in the same order; sends and
/// receives between stages pair up; the stages together can run to the end of the step. Pre: every
/// program passed verify_program. Errors: kInvalidPlan.
Status verify_mesh(const Plan& plan);

/// kForward and kBackward: once a micro-batch; the others once a step.
[[nodiscard]] constexpr bool fires_per_micro_batch(Phase phase) {
  return phase == Phase::kForward || phase == Phase::kBackward;
}

/// By buffer: is it read as prepared, so that one slot serves all micro-batches of a step?
std::vector<bool> prepared_buffers(const RankProgram& program);

}  // namespace sgactor::graph
