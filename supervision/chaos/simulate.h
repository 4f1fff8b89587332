#pragma once
#include "graph/base/status.h"
#include "supervision/chaos/sim_cluster.h"
#include "supervision/membership/guards.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sgactor::supervision {

struct SimulationOptions {
  uint64_t first_seed = 1;
  uint64_t last_seed = 1000;  ///< inclusive
  int32_t max_faults = 5;     ///< in a schedule
  int32_t max_workers = 64;
  ProtocolGuards guards;       ///< all on, except to show that one is needed
  int32_t max_failures = 3;    ///< stop after so many bad seeds
  int32_t trace_events = 60;   ///< of a bad seed, kept as text
  std::function<bool()> stop;  ///< asked between seeds; may be empty
};

/// A seed that went wrong, with the fewest of its faults that still make it so.
struct SimulationFailure {
  uint64_t seed = 0;
  SimOutcome outcome = SimOutcome::kDiverged;
  std::string report;  ///< scenario, what differs, the faults that are needed, the last events
};

struct SimulationSummary {
  int64_t seeds = 0;
  int64_t divergences = 0;  ///< diverged, broken or lost
  int64_t stuck = 0;
  int64_t unsurvivable = 0;  ///< the job gave up, and rightly: no copy of some state was left
  int64_t faults = 0;
  int64_t recoveries = 0;
  int64_t adoptions = 0;
  int64_t coordinator_restarts = 0;
  int64_t reexecuted = 0;
  int64_t survivors_reexecuted = 0;
  int64_t events = 0;
  double wall_seconds = 0;
  std::vector<SimulationFailure> failures;
};

/// Runs the random schedules of all seeds, one after the other on this thread, and compares every
/// state of every rank with the run without faults. A bad seed is run again with ever fewer faults
/// and then with a trace. Errors: kInvalidArgument for an empty range or sizes out of range.
Result<SimulationSummary> simulate_seeds(const SimulationOptions& options);

}  // namespace sgactor::supervision
