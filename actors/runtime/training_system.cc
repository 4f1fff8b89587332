#include "actors/runtime/training_system.h"

#include <caf/send.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sgactor::actors {
namespace {

// What WorkName packs.
constexpr int64_t kMostSteps = int64_t{1} << 36;
constexpr int32_t kMostMicroBatches = 65536;
constexpr size_t kMostLanes = 64;

Status check_plan(const graph::Plan& plan) {
  SGA_TRY(graph::verify_plan(plan));
  for (const graph::RankProgram& p : plan.programs) {
    if (p.num_micro_batches > kMostMicroBatches || p.lanes.size() > kMostLanes) {
      return invalid_plan(fmt::format("{} micro-batches on {} lanes, at most {} on {}",
                                      p.num_micro_batches, p.lanes.size(), kMostMicroBatches,
                                      kMostLanes));
    }
  }
  return {};
}

Status check(const TrainingSpec& spec, const TrainingInputs& in) {
  if (in.plan == nullptr || in.backend == nullptr || in.sampler == nullptr ||
      in.initial_state == nullptr) {
    return invalid_argument("a run needs a plan, a backend, a sampler and a state to start from");
  }
  if (spec.first_step < 1 || spec.last_step >= kMostSteps) {
    return invalid_argument(
        fmt::format("steps {} to {}: the first is 1", spec.first_step, spec.last_step));
  }
  if (spec.scheduler_threads < 1) return invalid_argument("a run needs a scheduler thread");
  SGA_TRY(check_plan(*in.plan));
  if (in.validation_plan == nullptr || spec.validation_interval <= 0) return {};
  if (in.validation_sampler == nullptr || spec.validation_batches < 1) {
    return invalid_argument("validation needs a sampler and at least one batch");
  }
  return check_plan(*in.validation_plan).with_context("validation plan");
}

StepPolicy policy_of(const TrainingSpec& spec, const TrainingInputs& in) {
  StepPolicy policy;
  policy.first_step = spec.first_step;
  policy.last_step = spec.last_step;
  policy.checkpoint_interval = spec.checkpoint_interval;
  policy.final_checkpoint = spec.final_checkpoint;
  policy.can_checkpoint = !spec.checkpoint_root.empty();
  policy.validation_interval = spec.validation_interval;
  policy.can_validate = in.validation_plan != nullptr;
  return policy;
}

}  // namespace

RunAssembly::~RunAssembly() = default;

Result<std::unique_ptr<RunAssembly>> RunAssembly::create(const TrainingSpec& spec,
                                                         const TrainingInputs& inputs,
                                                         const Services& services,
                                                         std::shared_ptr<Journal> journal) {
  SGA_TRY(check(spec, inputs));
  std::unique_ptr<RunAssembly> out(new RunAssembly);
  out->host_ = std::make_shared<CoordinatorHost>();
  CoordinatorHost& host = *out->host_;
  host.policy = policy_of(spec, inputs);
  host.validation_batches = spec.validation_batches;
  host.trace_steps = spec.trace_file.empty() ? 0 : spec.trace_steps;
  host.num_ranks = static_cast<int32_t>(inputs.plan->ranks.size());
  host.journal = std::move(journal);
  host.services = services;
  host.shared = std::make_shared<RunShared>();
  host.observer = inputs.observer;
  host.stop = inputs.stop;
  auto worker = std::make_shared<WorkerHost>();
  worker->shared = host.shared;
  for (int32_t r = 0; r < host.num_ranks; ++r) {
    SGA_ASSIGN(RankSetup setup, set_up_rank(spec, inputs, r));
    worker->ranks.push_back(out->host_rank(spec, setup));
    out->ranks_.push_back(std::move(setup));
  }
  host.workers.push_back(std::move(worker));
  return out;
}

RankHost RunAssembly::host_rank(const TrainingSpec& spec, const RankSetup& setup) {
  const std::shared_ptr<RunShared>& shared = host_->shared;
  const std::shared_ptr<LaneSet>& lanes = setup.training.context->lanes;
  std::vector<int32_t> tracks;
  for (size_t lane = 0; lane < lanes->lanes.size(); ++lane) {
    tracks.push_back(
        shared->tracer.add_track(fmt::format("rank {} lane {}", setup.rank, lane), true));
  }
  RankHost rank;
  rank.rank = setup.rank;
  rank.training = create_host(kTraining, setup.training, host_->services, shared, tracks);
  rank.training->first_step = spec.first_step;
  rank.training->last_step = spec.last_step;
  programs_.push_back(rank.training);
  if (setup.validation.context) {
    rank.validation = create_host(kValidation, setup.validation, host_->services, shared, tracks);
    rank.validation->last_step = std::numeric_limits<int64_t>::max();
    programs_.push_back(rank.validation);
  }
  if (setup.snapshots) {
    rank.writer = std::make_shared<WriterHost>();
    WriterHost& w = *rank.writer;
    w.rank = setup.rank;
    w.root = spec.checkpoint_root;
    w.keep = spec.keep_checkpoints;
    w.info = spec.checkpoint_template;
    w.snapshots = setup.snapshots;
    w.services = host_->services;
    w.shared = shared;
    w.sink = std::make_unique<ActorSink>(lanes, shared, tracks, "snapshot");
    writers_.push_back(rank.writer);
  }
  return rank;
}

void RunAssembly::close() {
  for (const RankSetup& r : ranks_) r.training.context->lanes->synchronize();
  for (const auto& p : programs_) release_receivers(*p);
  for (const auto& w : writers_) w->sink->set_receiver(LauncherActor());
}

TrainingSummary summarize(const RunAssembly& assembly, const RunOutcome& outcome,
                          const kernels::Backend& backend) {
  TrainingSummary out;
  out.last_step = outcome.last_step;
  out.interrupted = outcome.interrupted;
  out.allocations_at_end = backend.allocation_stats();
  out.allocations_at_start =
      assembly.shared().allocations_at_start.value_or(out.allocations_at_end);
  for (const PoolStats& p : outcome.pools) {
    out.arena_high_water_bytes = std::max(out.arena_high_water_bytes, p.high_water_bytes);
  }
  out.seconds = outcome.step_seconds;
  out.kernel_seconds = outcome.kernel_seconds;
  out.num_messages = assembly.shared().num_messages();
  return out;
}

}  // namespace sgactor::actors
