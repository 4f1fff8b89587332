#include "apps/sgactor/expected_step.h"

#include "apps/sgactor/profile_file.h"
#include "graph/compiler/explain_schedule.h"
#include "graph/compiler/profile.h"

#include <algorithm>

namespace sgactor::apps {
namespace {

bool measures(const graph::Profile& profile, const graph::Plan& plan) {
  return std::any_of(plan.subgraphs.begin(), plan.subgraphs.end(), [&](const auto& subgraph) {
    return profile.subgraphs.contains(subgraph.structure_hash);
  });
}

// Of a CPU that nobody has measured. The slowest that is worth training on has a tenth, which
// ProgressWatch allows for.
constexpr double kCpuFlopsPerS = 20e9;

/// By its FLOPs alone.
double seconds_on_cpu(const graph::Plan& plan, const graph::RankProgram& program) {
  double flops = 0;
  for (const graph::Launch& launch : program.launches) {
    if (launch.kind != graph::LaunchKind::kSubgraph) continue;
    const bool once = launch.phase == graph::Phase::kUpdate;
    flops += plan.subgraphs[static_cast<size_t>(launch.subgraph)].flops *
             (once ? 1 : program.num_micro_batches);
  }
  return flops / kCpuFlopsPerS;
}

}  // namespace

double expected_step_ms(const JobSpec& job, const graph::Plan& plan, const std::string& devices,
                        int64_t workers) {
  // The compiler has read the same files; what is wrong with one it has said.
  const auto profile = load_profile(job);
  const auto cluster = load_cluster(job);
  if (!profile.ok() || !cluster.ok()) return 0;
  const graph::Profile* times_of = profile->profile.get();
  if (times_of != nullptr && !measures(*times_of, plan)) times_of = nullptr;
  const bool modelled =
      times_of != nullptr || cluster->cluster != nullptr || devices.starts_with("cuda");
  if (!modelled && !devices.starts_with("cpu")) return 0;
  const graph::LaunchTimes times(plan, times_of, cluster->cluster.get());
  double step_s = 0;
  for (const graph::RankProgram& program : plan.programs) {
    if (!modelled) {
      step_s = std::max(step_s, seconds_on_cpu(plan, program));
      continue;
    }
    std::vector<double> launch_s;
    for (const graph::Launch& launch : program.launches) {
      launch_s.push_back(times.seconds(program, launch));
    }
    for (const graph::TimedFiring& firing : graph::time_schedule(program, launch_s)) {
      step_s = std::max(step_s, firing.end_s);
    }
  }
  const auto ranks = static_cast<int64_t>(plan.ranks.size());
  return step_s * 1e3 * static_cast<double>((ranks + workers - 1) / std::max<int64_t>(1, workers));
}

}  // namespace sgactor::apps
