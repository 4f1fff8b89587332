#pragma once
#include "graph/plan/plan.h"

namespace sgactor::graph {

/// Part of verify_structure: buffers, launches, edges and lane orders of one program. Pre: the
/// plan's subgraphs passed their checks. Errors: kInvalidPlan. Linear in launches and firings times
/// the number of lanes.
Status verify_program(const Plan& plan, const RankProgram& program);

/// kForward and kBackward: once a micro-batch; the others once a step.
[[nodiscard]] constexpr bool fires_per_micro_batch(Phase phase) {
  return phase == Phase::kForward || phase == Phase::kBackward;
}

}  // namespace sgactor::graph
