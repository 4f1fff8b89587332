#pragma once
#include "actors/runtime/training.h"
#include "apps/sgactor/run_recorder.h"
#include "apps/sgactor/training_setup.h"

namespace sgactor::apps {

/// What a run with training.micro_batch_size = "auto" changes as it goes.
struct TunedRun {
  const JobSpec& job;
  CompiledJob& compiled;  ///< in: of the first size; out: of the last one
  kernels::Backend& backend;
  const PlanCache& cache;
  RunRecorder& recorder;
  const graph::Plan* validation = nullptr;  ///< its arena lies beside the plan's; null: none
};

/// The checkpoint's copy of the job: `job` with the micro-batch size in use, from which a resumed
/// run goes on.
std::string sized_job(const JobSpec& job, int64_t micro_batch_size);

/// run_training() in pieces of a few steps until the micro-batch size is settled, then to the end.
/// Between two pieces the state goes through a checkpoint of the step, the job is compiled for the
/// new size, and a plan that does not fit the device is rejected before it runs; so is a size whose
/// memory the device does not give before the size's first step is done. Each decision is a
/// line of audit.jsonl, with step, sizes, reason, planned bytes and schema_hash. The global batch,
/// and so the samples of each step, never change. `inputs.plan` must be run.compiled's.
Result<actors::TrainingSummary> run_tuned(const TunedRun& run, const actors::TrainingSpec& spec,
                                          actors::TrainingInputs inputs);

}  // namespace sgactor::apps
