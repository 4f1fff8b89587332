#pragma once
#include "actors/runtime/batch_source.h"
#include "actors/runtime/gradient_check.h"
#include "actors/runtime/program_context.h"
#include "actors/runtime/snapshot.h"
#include "actors/runtime/training.h"
#include "actors/runtime/update_inputs.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace sgactor::actors {

/// Staging of a feeder, in the backend's storage, filled by the data service and copied into the
/// arena in lane order. A ring of slots for micro-batches, and two slots for a step's scalars (step
/// % 2).
struct FeedStaging {
  struct Slot {
    std::vector<std::byte*> buffers;  ///< one a batch buffer of the schedule
    std::vector<int32_t> tokens, targets;
  };
  std::vector<Slot> slots;
  std::array<std::vector<std::byte*>, 2> scalars;  ///< one a scalar of the context
  std::array<BatchSource::StepNumbers, 2> numbers;
  std::unique_ptr<kernels::DeviceMemory> memory;

  /// Fills slot `slot` with a micro-batch, and with micro-batch 0 the step's numbers and scalars.
  /// Blocks; for a service.
  Status prepare(const ProgramContext& context, BatchSource& source, int64_t step,
                 int32_t micro_batch, int32_t slot);
};
Result<std::unique_ptr<FeedStaging>> create_staging(const ProgramContext& context);

/// One program with what feeds it.
struct ProgramSetup {
  std::shared_ptr<ProgramContext> context;
  std::shared_ptr<FeedStaging> staging;
  std::shared_ptr<BatchSource> source;
};
/// Everything a worker needs to host one logical rank.
struct RankSetup {
  int32_t rank = 0;
  ProgramSetup training;
  ProgramSetup validation;                      ///< context is null: no validation
  std::shared_ptr<SnapshotStaging> snapshots;   ///< null: no checkpoints, or not made yet
  std::shared_ptr<StepHook> step_hook;          ///< of a strategy; null: none
  std::shared_ptr<UpdateInputs> update_inputs;  ///< null: not kept
  std::shared_ptr<GradientCheck> check;         ///< null: no step is verified
  std::optional<RedoneStep> redone;  ///< the step before the first, if its update was done again
};

/// Checks what coordinator and workers rely on: step numbers, thread count, and the plans that
/// there are. Pre: there is a training plan.
Status check_run(const TrainingSpec& spec, const TrainingInputs& inputs);
/// The first rank, if it holds the whole model, so that it can validate; else -1.
int32_t whole_model_rank(const graph::Plan& plan);
/// The rank that runs the validation plan where validation is asked for: whole_model_rank; else -1.
int32_t validation_rank(const TrainingSpec& spec, const TrainingInputs& inputs);

/// Compiles, allocates all memory of the run but that of snapshots, loads the state. Blocks; on no
/// actor's thread. Errors as create_context and the state source have them.
Result<RankSetup> set_up_rank(const TrainingSpec& spec, const TrainingInputs& inputs, int32_t rank);

}  // namespace sgactor::actors
