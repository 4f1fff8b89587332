#include "supervision/chaos/simulate.h"

#include <fmt/format.h>

#include <chrono>

namespace sgactor::supervision {
namespace {

bool bad(SimOutcome outcome) {
  return outcome != SimOutcome::kEqual && outcome != SimOutcome::kUnsurvivable;
}

/// Takes faults away, one by one, as long as the seed stays bad.
uint32_t minimal_faults(const SimScenario& scenario) {
  uint32_t mask = scenario.faults.size() >= 32 ? UINT32_MAX : (1U << scenario.faults.size()) - 1U;
  for (size_t i = 0; i < scenario.faults.size() && i < 32; ++i) {
    SimRunOptions options;
    options.fault_mask = mask & ~(1U << i);
    if (bad(run_scenario(scenario, options).outcome)) mask = options.fault_mask;
  }
  return mask;
}

SimulationFailure explain(const SimScenario& scenario, int32_t trace_events) {
  SimRunOptions options;
  options.fault_mask = minimal_faults(scenario);
  options.trace_events = trace_events;
  const SimResult result = run_scenario(scenario, options);
  SimulationFailure out{scenario.seed, result.outcome, scenario.describe()};
  std::string needed;
  for (size_t i = 0; i < scenario.faults.size() && i < 32; ++i) {
    if ((options.fault_mask >> i & 1U) != 0) needed += fmt::format(" {}", i + 1);
  }
  out.report += fmt::format("\n{}: {}\nfaults that it takes:{}\n", to_string(result.outcome),
                            result.message, needed.empty() ? " none" : needed);
  for (const std::string& line : result.trace) out.report += line + "\n";
  return out;
}

}  // namespace

Result<SimulationSummary> simulate_seeds(const SimulationOptions& options) {
  if (options.last_seed < options.first_seed) {
    return invalid_argument(
        fmt::format("seeds {}..{} are none", options.first_seed, options.last_seed));
  }
  if (options.max_faults < 0 || options.max_faults > 32) {
    return invalid_argument(fmt::format("{} faults: 0 to 32 are possible", options.max_faults));
  }
  if (options.max_workers < 4) {
    return invalid_argument(fmt::format("{} workers: 4 or more are possible", options.max_workers));
  }
  SimulationSummary sum;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = options.first_seed; seed <= options.last_seed; ++seed) {
    if (options.stop && options.stop()) break;
    SimScenario scenario = scenario_of(seed, options.max_faults, options.max_workers);
    scenario.guards = options.guards;
    const SimResult result = run_scenario(scenario);
    ++sum.seeds;
    sum.faults += result.faults;
    sum.recoveries += result.recoveries;
    sum.adoptions += result.adoptions;
    sum.coordinator_restarts += result.coordinator_restarts;
    sum.reexecuted += result.reexecuted;
    sum.survivors_reexecuted += result.survivors_reexecuted;
    sum.events += result.events;
    sum.unsurvivable += result.outcome == SimOutcome::kUnsurvivable ? 1 : 0;
    if (bad(result.outcome)) {
      (result.outcome == SimOutcome::kStuck ? sum.stuck : sum.divergences) += 1;
      if (options.trace_events > 0) {
        sum.failures.push_back(explain(scenario, options.trace_events));
      } else {
        sum.failures.push_back({seed, result.outcome, result.message});
      }
      if (static_cast<int32_t>(sum.failures.size()) >= options.max_failures) break;
    }
    if (seed == UINT64_MAX) break;
  }
  sum.wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return sum;
}

}  // namespace sgactor::supervision
