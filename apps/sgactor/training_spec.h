#pragma once
#include "actors/runtime/training.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/training_setup.h"

#include <cstdint>
#include <string>

namespace sgactor::apps {

/// What a job says of a run, for every process that takes part.
actors::TrainingSpec training_spec(const JobSpec& job, const RunDirectory& run, int64_t first_step,
                                   bool validates, int32_t scheduler_threads);
/// Fills in what a checkpoint says of the job it is of.
void describe_job(const JobSpec& job, const CompiledJob& compiled, actors::TrainingSpec& spec);

}  // namespace sgactor::apps
