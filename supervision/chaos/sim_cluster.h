#pragma once
#include "supervision/chaos/sim_scenario.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::supervision {

enum class SimOutcome : uint8_t {
  kEqual = 0,     ///< all states are those of the run without faults
  kUnsurvivable,  ///< the faults took a state with all its copies, or all room: the job said so
  kDiverged,      ///< some state differs
  kStuck,         ///< no progress although nothing is missing
  kBroken,        ///< a machine found its protocol violated
  kLost,          ///< the job gave up although a copy should have been there
};
std::string_view to_string(SimOutcome outcome);

struct SimResult {
  SimOutcome outcome = SimOutcome::kEqual;
  std::string message;      ///< of what went wrong
  uint64_t state_hash = 0;  ///< of all ranks' final states
  uint64_t event_hash = 0;  ///< of all events in order: equal for equal runs
  int64_t events = 0;
  int64_t virtual_us = 0;
  int32_t faults = 0;                ///< that struck; others had no victim that could be spared
  int32_t recoveries = 0;            ///< changes of membership after a loss
  int32_t adoptions = 0;             ///< new lives of ranks
  int64_t reexecuted = 0;            ///< pieces of work done again by adopters
  int64_t survivors_reexecuted = 0;  ///< ... by anybody else
  int32_t coordinator_restarts = 0;
  std::vector<std::string> trace;  ///< the last events, if asked for
};

struct SimRunOptions {
  uint32_t fault_mask = UINT32_MAX;  ///< bit i: fault i of the scenario strikes
  int32_t trace_events = 0;          ///< how many of the last events to keep as text
};

/// Runs the scenario's cluster to its end: coordinator, nodes with mirrors, and workers as actors
/// of CAF's testing scheduler, on the calling thread, in virtual time, over a simulated network and
/// disk. Deterministic: equal arguments give equal results, whatever ran before. Threads: one run a
/// thread at a time.
SimResult run_scenario(const SimScenario& scenario, const SimRunOptions& options = {});

}  // namespace sgactor::supervision
