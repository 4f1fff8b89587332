#pragma once
#include "actors/core/step_core.h"
#include "actors/protocol/interfaces.h"
#include "actors/runtime/journal.h"
#include "actors/runtime/services.h"
#include "actors/runtime/training.h"
#include "actors/runtime/worker.h"

#include <caf/actor_system.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sgactor::actors {

/// How a run ended.
struct RunOutcome {
  Status status;  ///< of the actor that failed first, or ok
  int64_t last_step = 0;
  bool interrupted = false;
  std::vector<PoolStats> pools;  ///< index: logical rank; empty if the run failed
  double step_seconds = 0;       ///< from begin to done, summed over steps
  double kernel_seconds = 0;     ///< of the slowest rank's compute lane, summed over steps
};

/// What a coordinator is spawned with. Borrowed pointers outlive the actor system.
struct CoordinatorHost {
  StepPolicy policy;
  int64_t validation_batches = 0;
  int64_t trace_steps = 0;
  std::vector<std::shared_ptr<WorkerHost>> workers;
  int32_t num_ranks = 1;
  std::shared_ptr<Journal> journal;
  Services services;
  std::shared_ptr<RunShared> shared;
  TrainingObserver* observer = nullptr;
  const std::atomic<bool>* stop = nullptr;
  /// Called once, on the coordinator's thread, also when it fails itself. All actors end after.
  std::function<void(const RunOutcome&)> on_finished;
};

/// Spawns the coordinator, which spawns the workers and runs the job to its end.
CoordinatorActor spawn_coordinator(caf::actor_system& system,
                                   const std::shared_ptr<CoordinatorHost>& host);

}  // namespace sgactor::actors
