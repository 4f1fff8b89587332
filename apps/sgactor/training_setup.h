#pragma once
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/plan_cache.h"
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
  bool from_cache = false;
};
/// The compiler's options for a job.
graph::CompileOptions compile_options(const JobSpec& job, graph::StorageModel storage);
/// Sets compile.f8_layout and compile.head_room where they are "auto" to what devices of this kind
/// want: "cuda" the summed dim last and room for the head's logits in the plan, others operands as
/// they lie and no room. Runs in every process that has the job's text.
void choose_f8_layout(JobSpec& job, const std::string& devices);
/// Model and plan. Checks that the build supports the job first. `dump` may be empty; a plan
/// from `cache` (null: none) has no passes to dump, so give one of the two. Errors:
/// kInvalidArgument (a memory budget that cannot be met and degrees that do not fit the model are
/// such), kUnsupported (naming the key), kInvalidPlan.
Result<CompiledJob> compile_job(const JobSpec& job, graph::StorageModel storage,
                                decltype(graph::CompileOptions::dump) dump = {},
                                const PlanCache* cache = nullptr);

/// The data of a job and who draws from it.
struct TrainingData {
  transport::Datasets sets;
  std::unique_ptr<transport::Sampler> sampler;
  std::unique_ptr<transport::Sampler> validation_sampler;  ///< null: no validation
};
/// Validation batches have `validation_batch` sequences each; 0: training.micro_batch_size. Errors:
/// kInvalidArgument naming the key.
Result<TrainingData> open_training_data(const JobSpec& job, int64_t vocab_size,
                                        int64_t validation_batch = 0);

/// Everything of a job that is there before a run directory is: data, samplers, plans.
struct TrainingSetup {
  CompiledJob training;
  std::optional<graph::Compiled> validation;
  TrainingData data;
};
/// Opens the data, then compiles. Writes nothing. `validation_batch` as open_training_data has it.
Result<TrainingSetup> set_up_training(const JobSpec& job, graph::StorageModel storage,
                                      const PlanCache* cache = nullptr,
                                      int64_t validation_batch = 0);

}  // namespace sgactor::apps
