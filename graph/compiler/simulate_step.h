#pragma once
#include "graph/cluster/cluster_spec.h"
#include "graph/compiler/explain_schedule.h"
#include "graph/plan/plan.h"

#include <string>
#include <vector>

namespace sgactor::graph {

/// A step of one pipeline stage's ranks on a cluster, by the cost model.
struct SimulatedRank {
  int32_t rank = 0;  ///< the stage's first logical rank
  std::vector<TimedFiring> firings;
};
struct SimulatedStep {
  std::vector<SimulatedRank> ranks;  ///< one a stage
  double step_s = 0;
  double compute_s = 0;        ///< of the busiest stage
  double communication_s = 0;  ///< of the same stage, added over its lanes
  double overlap = 1;          ///< least of the stages' (overlap_share)
};

/// Logical rank r sits on device r of the cluster, so that tp, then dp neighbours share a host. A
/// group's operations run at the host's link if all its members share one, else at the network's.
/// Stages run side by side; a receive waits for its send. Pre: verify_plan is ok. Errors:
/// kInvalidArgument: fewer devices than ranks.
Result<SimulatedStep> simulate_step(const Plan& plan, const ClusterSpec& cluster);

/// As the runtime's traces: a process a rank, tracks "rank R lane L", microseconds.
std::string simulated_trace(const Plan& plan, const SimulatedStep& step);

}  // namespace sgactor::graph
