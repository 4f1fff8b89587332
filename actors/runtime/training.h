#pragma once
#include "actors/runtime/behaviours.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"
#include "transport/storage/checkpoint.h"
#include "transport/storage/dataset.h"
#include "transport/storage/state_source.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::transport {
class Collectives;
}

namespace sgactor::actors {

/// One committed step, as metrics.jsonl shows it.
struct StepReport {
  int64_t step = 0;     ///< first is 1
  float loss = 0;       ///< nats a token, of the whole global batch
  float grad_norm = 0;  ///< before clipping
  float lr = 0;
  int64_t tokens = 0;  ///< of the global batch
  double step_ms = 0;
  double kernel_ms = 0;  ///< time the compute lane was inside kernels
  int64_t generation = 1;
  uint64_t sample_hash = 0;
  int64_t reexecuted = 0;  ///< launches that processes had executed before, in this generation
};

/// What comes of a step that was verified (gradient_check.h).
struct VerifiedStep {
  int64_t step = 0;
  // Where executions did not agree:
  int32_t rank = -1;      ///< whose posts they are; -1: all agreed
  int32_t liar = -1;      ///< who was wrong
  uint64_t own_hash = 0;  ///< of the rank itself, the first time
  int32_t checker = -1;
  uint64_t checker_hash = 0;
  int32_t umpire = -1;
  uint64_t umpire_hash = 0;
};

/// What the run tells its caller. Called from the coordinator actor's thread, one call at a time;
/// must not block for long.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void on_step(const StepReport& report) = 0;
  virtual void on_validation(int64_t step, double loss) = 0;
  virtual void on_checkpoint(int64_t step, const std::string& path,
                             const transport::WriteStats& stats) = 0;
  virtual void on_verified(const VerifiedStep& /*verified*/) {}
};

struct TrainingSpec {
  int64_t first_step = 1;           ///< 1, or the checkpoint's step + 1
  int64_t last_step = 1;            ///< inclusive
  int64_t checkpoint_interval = 0;  ///< steps; 0: only at the end
  bool final_checkpoint = true;
  int64_t keep_checkpoints = 0;
  std::string checkpoint_root;                    ///< empty: none are written
  transport::CheckpointInfo checkpoint_template;  ///< schema, model, job, seed
  /// Where the update inputs of each step are kept, for a way back; empty: nowhere.
  std::string mirror_root;
  /// No update inputs are kept there: a lost rank's state comes from a data-parallel replica.
  bool replicas = false;
  /// The initial state is that before this step: the updates up to first_step - 1 are done again
  /// from mirror_root. 0: it is that of first_step - 1.
  int64_t redo_from = 0;
  /// Steps; of every such step each rank executes again what another has posted. 0: never.
  int64_t verify_interval = 0;
  std::string journal_file;         ///< commits, a synced line each; empty: kept in memory
  int64_t validation_interval = 0;  ///< steps, and after the last one; 0: never
  int64_t validation_batches = 8;   ///< micro-batches, the same ones each time
  std::string trace_file;  ///< Chrome trace (gzip) of the first `trace_steps` steps; empty: none
  int64_t trace_steps = 0;
  int32_t scheduler_threads = 2;           ///< of CAF
  std::shared_ptr<Behaviours> behaviours;  ///< of a strategy; null: none
};

class WorkerAssembly;

/// Borrowed for the length of the call.
struct TrainingInputs {
  const graph::Plan* plan = nullptr;
  const graph::Plan* validation_plan =
      nullptr;  ///< forward with loss; null: no validation. Shares parameters by name.
  kernels::Backend* backend = nullptr;
  /// For plans that communicate; routes of the run's generation (1) are set. Null: the plan does
  /// not communicate.
  transport::Collectives* collectives = nullptr;
  const transport::Sampler* sampler = nullptr;
  const transport::Sampler* validation_sampler = nullptr;
  const transport::StateSource* initial_state = nullptr;  ///< parameters and moments
  TrainingObserver* observer = nullptr;
  const std::atomic<bool>* stop =
      nullptr;  ///< set: finish the step, checkpoint, return interrupted
  /// Of run_training: told what the actors share before they begin, and null when they have ended
  /// and before it goes. On the caller's thread.
  std::function<void(WorkerAssembly*)> on_running;
};

struct TrainingSummary {
  int64_t last_step = 0;
  bool interrupted = false;
  kernels::AllocationStats allocations_at_start;  ///< when the first step began
  kernels::AllocationStats allocations_at_end;
  int64_t arena_high_water_bytes = 0;  ///< measured by the pool; equals the plan
  /// Of all steps, from begin to done: without set-up, validation and waiting for checkpoints.
  double seconds = 0;
  double kernel_seconds = 0;  ///< the compute lane inside kernels, in the same time
  int64_t num_messages = 0;   ///< actor messages in all steps
};

/// Trains in one process: spawns coordinator, worker, pool, feeder, subgraph actors and checkpoint
/// writer, runs the steps, ends all actors. Blocks the calling thread, which is no actor's. A
/// failure of any actor ends the run with its Status.
Result<TrainingSummary> run_training(const TrainingSpec& spec, const TrainingInputs& inputs);

/// Runs a forward plan once, outside of a training run, on the caller's thread: uploads `tokens`,
/// launches, returns output values as f32 (kLogits or kLoss). Holds executables and arena between
/// calls.
class ForwardRunner {
 public:
  static Result<std::unique_ptr<ForwardRunner>> create(const graph::Plan& plan,
                                                       kernels::Backend& backend,
                                                       const transport::StateSource& state);
  virtual ~ForwardRunner() = default;
  virtual Result<std::vector<float>> run(std::span<const int32_t> tokens,
                                         std::span<const int32_t> targets) = 0;
};

}  // namespace sgactor::actors
