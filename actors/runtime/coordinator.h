#pragma once
#include "actors/core/step_core.h"
#include "actors/protocol/interfaces.h"
#include "actors/runtime/journal.h"
#include "actors/runtime/run_shared.h"
#include "actors/runtime/services.h"
#include "actors/runtime/training.h"
#include "graph/plan/plan.h"

#include <caf/actor_system.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sgactor::actors {

/// How a run ended.
struct RunOutcome {
  Status status;  ///< of the actor that failed first, or ok
  int64_t last_step = 0;
  bool interrupted = false;
  bool paused = false;  ///< by CoordinatorHost::pause: the run can go on from its newest copy
  std::vector<PoolStats> pools;  ///< index: logical rank; empty if the run failed
  double step_seconds = 0;       ///< from begin to done, summed over steps
  double kernel_seconds = 0;     ///< of the slowest rank's compute lane, summed over steps
  int64_t committed = 0;         ///< the step committed last, whether it was reported or not
  /// With CoordinatorHost::replicas: that step, if it was not reported, as far as it can be said
  /// here. What all ranks have in common is missing as long as `owed_whole` is false.
  std::optional<StepReport> owed;
  bool owed_whole = false;
};

/// Spawns a worker, or what stands for one in another process: an actor of this system that takes
/// the worker's messages and sends those of a worker to `coordinator`. Linked to and monitored by
/// `parent`, which is the coordinator and calls this once, as it starts.
using SpawnWorker =
    std::function<WorkerActor(caf::local_actor* parent, const CoordinatorActor& coordinator)>;

/// Where checkpoints of the whole job go.
struct CheckpointTarget {
  std::string root;
  int64_t keep = 0;
  transport::CheckpointInfo info;  ///< template; step and position are filled in
};

/// What a coordinator is spawned with. Knows no device and no worker but by SpawnWorker. Borrowed
/// pointers outlive the actor system.
struct CoordinatorHost {
  StepPolicy policy;
  int64_t validation_batches = 0;
  int64_t trace_steps = 0;
  std::vector<SpawnWorker> workers;              ///< together they host every rank, each once
  std::vector<graph::RankPlacement> placements;  ///< index: logical rank
  std::vector<int32_t> umpires;                  ///< index: logical rank; as umpire_of has them
  int32_t validation_rank = -1;                  ///< the one that validates; -1: none
  CheckpointTarget checkpoints;
  /// Copies in memory, each policy.mirror_interval steps; its info is not used; no root: none, not
  /// even at a pause. One that cannot be written is left out. The observer is told of them as of
  /// checkpoints.
  CheckpointTarget mirror;
  int64_t generation = 1;
  /// Set: the run is taken over from a coordinator that is gone. `incarnations` are those of all
  /// ranks, on disk before this is spawned; the workers answer as after a Fence.
  std::optional<TakenOver> taken_over;
  std::vector<int64_t> incarnations;
  std::vector<int64_t>
      loss_bits;  ///< with it: of the step committed last, as CommitRecord has them
  /// Votes carry losses. Whoever takes over a lost rank (Adopt) has the state of the step committed
  /// last from a replica and does not tell of that step: it is reported without.
  bool replicas = false;
  std::shared_ptr<Journal> journal;
  Services services;
  std::shared_ptr<RunShared> shared;
  TrainingObserver* observer = nullptr;
  const std::atomic<bool>* stop = nullptr;
  const std::atomic<bool>* pause = nullptr;  ///< ends the run after a mirror, between two steps
  /// Called when all ranks are ready for the first step, and when they go on after a Fence. This
  /// and those below are called on the coordinator's thread.
  std::function<void(int64_t generation)> on_ready;
  /// Set: the run goes on when workers are lost (Fence, Adopt), and does not end with them. Called
  /// once for each Fence that no later one has replaced, when it is on disk: with its generation
  /// and the step committed last, which stays that until all are ready again; or with -1: too late,
  /// the run is finishing.
  std::function<void(int64_t generation, int64_t committed)> on_fenced;
  /// A record is on disk and nobody has heard of it: that of a step (`fence` 0), or of a Fence. For
  /// injected faults.
  std::function<void(int64_t step, int64_t fence)> on_journalled;
  /// Set: the run goes on when an actor of a rank has failed and its process has not. Whoever hears
  /// this answers by a Fence of that rank and an Adopt, or ends the run by a FaultReport of rank
  /// -1.
  std::function<void(int32_t rank, const Status& why)> on_failed;
  /// Something waits for a recovery in this generation, because of this.
  std::function<void(int64_t generation, const Status& why)> on_suspended;
  /// Executions of what a rank has posted do not agree, and this rank was wrong: nothing is
  /// committed any more. Null: the run ends with the Status.
  std::function<void(int32_t rank, const Status& why)> on_wrong_bits;
  /// Called once, also when the coordinator fails itself. All actors end after.
  std::function<void(const RunOutcome&)> on_finished;

  [[nodiscard]] int32_t num_ranks() const { return static_cast<int32_t>(placements.size()); }
};

/// The coordinator's part of a run, without workers and without on_finished: the caller adds both.
/// Of `inputs` only plans, observer and stop are read. Says in the log if a validation that is
/// asked for is left out, since no rank of the plan can run it. Errors: kInvalidArgument,
/// kInvalidPlan.
Result<std::shared_ptr<CoordinatorHost>> create_coordinator_host(const TrainingSpec& spec,
                                                                 const TrainingInputs& inputs,
                                                                 const Services& services,
                                                                 std::shared_ptr<Journal> journal,
                                                                 std::shared_ptr<RunShared> shared);

/// What is known of a step from the record of its commit: its loss. Nothing without losses.
std::optional<StepReport> owed_report(const std::vector<graph::RankPlacement>& placements,
                                      const CommitRecord& record);
/// Adds to a step's report what all ranks have in common.
void complete_report(StepReport& report, const StepDone& done);

/// Spawns the coordinator, which spawns the workers and runs the job to its end.
CoordinatorActor spawn_coordinator(caf::actor_system& system,
                                   const std::shared_ptr<CoordinatorHost>& host);

}  // namespace sgactor::actors
