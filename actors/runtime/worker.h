#pragma once
#include "actors/protocol/interfaces.h"
#include "actors/runtime/members.h"
#include "actors/runtime/state_mark.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace sgactor::actors {

/// One logical rank on a worker.
struct RankHost {
  int32_t rank = 0;
  int64_t incarnation = 1;
  std::shared_ptr<ProgramHost> training;
  std::shared_ptr<ProgramHost> validation;      ///< null: none
  std::shared_ptr<WriterHost> writer;           ///< null: no checkpoints
  std::shared_ptr<StepHook> step_hook;          ///< between training steps; null: none
  std::shared_ptr<UpdateInputs> update_inputs;  ///< kept before each vote; null: not
  std::shared_ptr<GradientCheck> check;         ///< null: no step is verified
  int64_t verify_interval = 0;
  std::optional<RedoneStep> redone;  ///< the step before the first, if its update was done again
  std::shared_ptr<StateMark> state;  ///< of what `training` has in memory; null: nobody asks
  /// Votes carry the rank's loss, so that a step can be reported without it.
  bool votes_loss = false;
};

/// What a worker hosts: an ordered set of logical ranks of one device.
struct WorkerHost {
  std::vector<RankHost> ranks;
  std::shared_ptr<RunShared> shared;
  int64_t trace_until = 0;  ///< the trace ends when this step begins
  /// In which others are reached: of RankReady. Set before the worker is spawned; raised by who
  /// sends Rejoined.
  std::atomic<int64_t> generation{1};
  /// Newest step that was begun; 0: none. The worker writes it.
  std::atomic<int64_t> begun{0};
};

/// Spawns a worker, linked to and monitored by `parent`, which is `coordinator` itself: the real
/// one or what stands for it in this process. It spawns the actors of its ranks, tells them who is
/// who, and reports RankReady for each. A failure of one of them becomes a FaultReport; the worker
/// itself goes on until it is ended.
WorkerActor spawn_worker(caf::local_actor* parent, const std::shared_ptr<WorkerHost>& host,
                         const CoordinatorActor& coordinator);

}  // namespace sgactor::actors
