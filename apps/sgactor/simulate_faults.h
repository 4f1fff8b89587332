#pragma once
#include "apps/sgactor/chaos_scenario.h"
#include "apps/sgactor/job_spec.h"
#include "graph/cluster/cluster_spec.h"
#include "graph/compiler/simulate_step.h"
#include "graph/plan/plan.h"
#include "supervision/chaos/fault_timeline.h"
#include "supervision/chaos/sim_cluster.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace sgactor::apps {

struct FaultOptions {
  std::string file;              ///< scenario; empty: devices and hosts fail at kDeviceMtbfHours
  std::optional<uint64_t> seed;  ///< of what is drawn; 1 without
  [[nodiscard]] bool wanted() const { return !file.empty() || seed.has_value(); }
};
/// Of one device with what hangs on it: 419 unforeseen interruptions of 16,384 GPUs in 54 days
/// (Grattafiori et al., The Llama 3 Herd of Models, 2024, section 3.3.4) are one in 50,677 hours.
inline constexpr double kDeviceMtbfHours = 50'000;

/// What faults would do to a run that simulate_step has timed.
struct SimulatedFaults {
  std::string source;  ///< the scenario's file, or what stands for it
  uint64_t seed = 1;
  int64_t steps = 0;
  double step_s = 0;
  supervision::Timeline timeline;
  /// The recovery protocol itself under faults of these kinds and victims, in virtual time; nothing
  /// where the mesh is too large for it, or no fault touches it.
  std::optional<supervision::SimResult> protocol;
  std::string no_protocol;  ///< why not
  int32_t num_ranks = 0;
  int32_t num_workers = 0;
};

/// Sizes and times of the run that the timeline needs: each logical rank on the device of its
/// number. Pre: simulate_step(plan, cluster) gave `step`.
supervision::TimelineRun timeline_run(const JobSpec& job, const graph::Plan& plan,
                                      const graph::ClusterSpec& cluster,
                                      const graph::SimulatedStep& step, int64_t spares);

/// Reads the scenario and plays it. Equal arguments give equal results. Errors: kInvalidArgument
/// naming file, line and key of the scenario, or the job's key.
Result<SimulatedFaults> simulate_faults(const JobSpec& job, const graph::Plan& plan,
                                        const graph::ClusterSpec& cluster,
                                        const graph::SimulatedStep& step,
                                        const FaultOptions& options);

/// Adds its keys to what `sgactor simulate --json` prints.
void add_json(const SimulatedFaults& faults, nlohmann::ordered_json& out);
std::string to_text(const SimulatedFaults& faults);

}  // namespace sgactor::apps
