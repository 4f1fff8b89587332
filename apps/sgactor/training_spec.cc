#include "apps/sgactor/training_spec.h"

#include "actors/strategy/chosen_strategy.h"
#include "apps/sgactor/micro_batch_run.h"
#include "apps/sgactor/profile_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::apps {

actors::TrainingSpec training_spec(const JobSpec& job, const RunDirectory& run, int64_t first_step,
                                   bool validates, int32_t scheduler_threads) {
  actors::TrainingSpec spec;
  spec.first_step = first_step;
  spec.last_step = job.training.steps;
  spec.checkpoint_interval = job.checkpoint.interval;
  spec.keep_checkpoints = job.checkpoint.keep;
  spec.checkpoint_root = run.checkpoints();
  spec.journal_file = run.journal();
  spec.validation_interval = validates ? job.training.validation_interval : 0;
  spec.verify_interval = job.resilience.verify_interval;
  spec.replicas = job.resilience.mode == "replicas";
  spec.validation_batches = job.training.validation_batches;
  spec.trace_steps = job.log.trace_steps;
  if (!job.profile.record.empty()) spec.trace_steps = std::max(spec.trace_steps, kProfileSteps);
  if (spec.trace_steps > 0) spec.trace_file = run.trace();
  spec.scheduler_threads = scheduler_threads;
  spec.behaviours = job.strategy_in_use;
  return spec;
}

void describe_job(const JobSpec& job, const CompiledJob& compiled, actors::TrainingSpec& spec) {
  transport::CheckpointInfo& info = spec.checkpoint_template;
  const graph::Plan& plan = compiled.compiled.plan;
  info.schema_hash = plan.schema_hash;
  info.mesh = fmt::format("pp={} dp={} tp={}", plan.mesh.pp, plan.mesh.dp, plan.mesh.tp);
  info.run_state = "RUNNING";
  info.data_seed = static_cast<uint64_t>(job.training.seed);
  info.model_config = graph::to_hf_config(compiled.config);
  info.job = sized_job(job, job.training.micro_batch_size);
  info.graph = compiled.graph_bytes;
}

}  // namespace sgactor::apps
