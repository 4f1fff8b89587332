#include "actors/runtime/training_system.h"

#include "actors/runtime/gradient_check.h"
#include "graph/base/log.h"

#include <caf/send.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {
namespace {

StepPolicy policy_of(const TrainingSpec& spec, const TrainingInputs& in) {
  StepPolicy policy;
  policy.first_step = spec.first_step;
  policy.last_step = spec.last_step;
  policy.checkpoint_interval = spec.checkpoint_interval;
  policy.final_checkpoint = spec.final_checkpoint;
  policy.can_checkpoint = !spec.checkpoint_root.empty();
  policy.validation_interval = spec.validation_interval;
  policy.can_validate = validation_rank(spec, in) >= 0;
  return policy;
}

}  // namespace

Result<std::shared_ptr<CoordinatorHost>> create_coordinator_host(
    const TrainingSpec& spec, const TrainingInputs& inputs, const Services& services,
    std::shared_ptr<Journal> journal, std::shared_ptr<RunShared> shared) {
  if (inputs.plan == nullptr) return invalid_argument("a run needs a plan");
  SGA_TRY(check_run(spec, inputs));
  auto host = std::make_shared<CoordinatorHost>();
  host->policy = policy_of(spec, inputs);
  host->validation_batches = spec.validation_batches;
  host->trace_steps = spec.trace_file.empty() ? 0 : spec.trace_steps;
  host->placements = inputs.plan->ranks;
  for (size_t r = 0; r < host->placements.size(); ++r) {
    host->umpires.push_back(umpire_of(*inputs.plan, static_cast<int32_t>(r)));
  }
  host->validation_rank = validation_rank(spec, inputs);
  host->checkpoints = {spec.checkpoint_root, spec.keep_checkpoints, spec.checkpoint_template};
  host->replicas = spec.replicas;
  host->journal = std::move(journal);
  host->services = services;
  host->shared = std::move(shared);
  host->observer = inputs.observer;
  host->stop = inputs.stop;
  if (inputs.validation_plan != nullptr && spec.validation_interval > 0 &&
      host->validation_rank < 0) {
    log::warn("validation is left out: no rank of the plan holds the whole model");
  }
  return host;
}

RunAssembly::~RunAssembly() = default;

Result<std::unique_ptr<RunAssembly>> RunAssembly::create(const TrainingSpec& spec,
                                                         const TrainingInputs& inputs,
                                                         const Services& services,
                                                         std::shared_ptr<Journal> journal) {
  std::unique_ptr<RunAssembly> out(new RunAssembly);
  auto shared = std::make_shared<RunShared>();
  SGA_ASSIGN(out->host_,
             create_coordinator_host(spec, inputs, services, std::move(journal), shared));
  std::vector<int32_t> ranks;
  for (int32_t r = 0; r < out->host_->num_ranks(); ++r) ranks.push_back(r);
  SGA_ASSIGN(out->worker_, WorkerAssembly::create(spec, inputs, ranks, services, shared));
  out->host_->workers.push_back(
      [host = out->worker_->host()](caf::local_actor* parent, const CoordinatorActor& coordinator) {
        return spawn_worker(parent, host, coordinator);
      });
  return out;
}

TrainingSummary summarize(RunShared& shared, const RunOutcome& outcome,
                          const kernels::Backend& backend) {
  TrainingSummary out;
  out.last_step = outcome.last_step;
  out.interrupted = outcome.interrupted;
  out.allocations_at_end = backend.allocation_stats();
  out.allocations_at_start = shared.allocations_at_start.value_or(out.allocations_at_end);
  for (const PoolStats& p : outcome.pools) {
    out.arena_high_water_bytes = std::max(out.arena_high_water_bytes, p.high_water_bytes);
  }
  out.seconds = outcome.step_seconds;
  out.kernel_seconds = outcome.kernel_seconds;
  out.num_messages = shared.num_messages();
  return out;
}

}  // namespace sgactor::actors
