#pragma once
#include "apps/sgactor/job_spec.h"
#include "graph/compiler/pipeline.h"
#include "transport/storage/dataset.h"

#include <memory>
#include <optional>
#include <string>

namespace sgactor::apps {

/// Compiled training graph of a job, and the graph that its schema_hash names.
struct CompiledJob {
  graph::LlamaConfig config;
  graph::Compiled compiled;
  std::string graph_bytes;  ///< serialized training graph; empty if no pass showed it
};
/// The compiler's options for a job.
graph::CompileOptions compile_options(const JobSpec& job, graph::StorageModel storage);
/// Model and plan. Checks that the build supports the job first. `dump` may be empty. Errors:
/// kInvalidArgument, kUnsupported (naming the key), kInvalidPlan.
Result<CompiledJob> compile_job(const JobSpec& job, graph::StorageModel storage,
                                decltype(graph::CompileOptions::dump) dump = {});

/// Everything of a job that is there before a run directory is: data, samplers, plans.
struct TrainingSetup {
  CompiledJob training;
  std::optional<graph::Compiled> validation;
  transport::Datasets data;
  std::unique_ptr<transport::Sampler> sampler;
  std::unique_ptr<transport::Sampler> validation_sampler;
};
/// Opens the data, then compiles. Writes nothing.
Result<TrainingSetup> set_up_training(const JobSpec& job, graph::StorageModel storage);

}  // namespace sgactor::apps
