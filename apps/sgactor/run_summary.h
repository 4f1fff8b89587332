#pragma once
#include "actors/runtime/training.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/run_recorder.h"
#include "graph/models/llama.h"
#include "kernels/backend/backend.h"

namespace sgactor::apps {

// What `sgactor train` prints before the first step and after the last, on standard output.

void print_head(const JobSpec& job, const graph::Plan& plan, const kernels::DeviceInfo& device,
                const RunDirectory& run);
void print_end(const RunDirectory& run, const RunRecorder& recorder,
               const actors::TrainingSummary& summary);
/// Writes hf/ if the job asks for it, and prints a sampled continuation of log.sample_prompt, both
/// from the run's newest checkpoint.
Status export_and_sample(const JobSpec& job, const graph::LlamaConfig& config,
                         const RunDirectory& run, kernels::Backend& backend);

}  // namespace sgactor::apps
