#include "actors/runtime/worker_assembly.h"

#include <caf/send.hpp>
#include <fmt/format.h>

#include <limits>

namespace sgactor::actors {
namespace {

Status check(const TrainingSpec& spec, const TrainingInputs& in,
             const std::vector<int32_t>& ranks) {
  if (in.plan == nullptr || in.backend == nullptr || in.sampler == nullptr ||
      in.initial_state == nullptr) {
    return invalid_argument("a run needs a plan, a backend, a sampler and a state to start from");
  }
  SGA_TRY(check_run(spec, in));
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || static_cast<size_t>(ranks[i]) >= in.plan->ranks.size() ||
        (i > 0 && ranks[i] <= ranks[i - 1])) {
      return invalid_argument(
          fmt::format("rank {} of {}: a worker hosts ranks of the plan, each "
                      "once and in order",
                      ranks[i], in.plan->ranks.size()));
    }
  }
  if (validation_rank(spec, in) < 0) return {};
  if (in.validation_sampler == nullptr || spec.validation_batches < 1) {
    return invalid_argument("validation needs a sampler and at least one batch");
  }
  return {};
}

}  // namespace

WorkerAssembly::~WorkerAssembly() = default;

Result<std::unique_ptr<WorkerAssembly>> WorkerAssembly::create(const TrainingSpec& spec,
                                                               const TrainingInputs& inputs,
                                                               const std::vector<int32_t>& ranks,
                                                               const Services& services,
                                                               std::shared_ptr<RunShared> shared) {
  SGA_TRY(check(spec, inputs, ranks));
  std::unique_ptr<WorkerAssembly> out(new WorkerAssembly);
  out->host_ = std::make_shared<WorkerHost>();
  WorkerHost& host = *out->host_;
  host.shared = shared ? std::move(shared) : std::make_shared<RunShared>();
  if (!spec.trace_file.empty() && spec.trace_steps > 0) {
    host.shared->tracer.enable(true);
    host.trace_until = spec.first_step + spec.trace_steps;
  }
  for (const int32_t r : ranks) {
    SGA_ASSIGN(RankSetup setup, set_up_rank(spec, inputs, r));
    out->ranks_.push_back(std::move(setup));
  }
  for (RankSetup& setup : out->ranks_) {
    // Last: what cannot lie elsewhere has its memory by now.
    if (!spec.checkpoint_root.empty()) {
      SGA_ASSIGN(setup.snapshots, SnapshotStaging::create(*setup.training.context));
    }
    host.ranks.push_back(out->host_rank(spec, setup, services));
  }
  return out;
}

RankHost WorkerAssembly::host_rank(const TrainingSpec& spec, const RankSetup& setup,
                                   const Services& services) {
  const std::shared_ptr<RunShared>& shared = host_->shared;
  const std::shared_ptr<LaneSet>& lanes = setup.training.context->lanes;
  // Validation has launches of the same names on the same lanes: a profile of training is not to
  // take them for its own.
  std::vector<int32_t> tracks;
  std::vector<int32_t> validation_tracks;
  for (size_t lane = 0; lane < lanes->lanes.size(); ++lane) {
    tracks.push_back(
        shared->tracer.add_track(fmt::format("rank {} lane {}", setup.rank, lane), true));
    if (!setup.validation.context) continue;
    validation_tracks.push_back(
        shared->tracer.add_track(fmt::format("rank {} lane {} validation", setup.rank, lane)));
  }
  RankHost rank;
  rank.rank = setup.rank;
  rank.step_hook = setup.step_hook;
  rank.update_inputs = setup.update_inputs;
  rank.redone = setup.redone;
  rank.check = setup.check;
  rank.state = std::make_shared<StateMark>(setup.rank, spec.first_step - 1);
  rank.votes_loss = spec.replicas;
  rank.verify_interval = spec.verify_interval;
  rank.training = create_host(kTraining, setup.training, services, shared, tracks);
  rank.training->first_step = spec.first_step;
  rank.training->last_step = spec.last_step;
  programs_.push_back(rank.training);
  if (setup.validation.context) {
    rank.validation =
        create_host(kValidation, setup.validation, services, shared, validation_tracks);
    rank.validation->last_step = std::numeric_limits<int64_t>::max();
    programs_.push_back(rank.validation);
  }
  if (setup.snapshots) {
    rank.writer = std::make_shared<WriterHost>();
    WriterHost& w = *rank.writer;
    w.rank = setup.rank;
    w.root = spec.checkpoint_root;
    w.snapshots = setup.snapshots;
    w.services = services;
    w.shared = shared;
    w.sink = std::make_unique<ActorSink>(lanes, shared, tracks, "snapshot");
    writers_.push_back(rank.writer);
  }
  return rank;
}

void WorkerAssembly::abort(const Status& why) {
  for (const RankSetup& r : ranks_) {
    r.training.context->lanes->abort(why);
    if (r.step_hook) r.step_hook->abort(why);
  }
}

void WorkerAssembly::close() {
  abort(make_status(Code::kCancelled, "the run has ended"));
  for (const RankSetup& r : ranks_) {
    r.training.context->lanes->synchronize();
    if (r.check) r.check->close();
    if (r.step_hook) r.step_hook->close();
  }
  for (const auto& p : programs_) release_receivers(*p);
  for (const auto& w : writers_) w->sink->set_receiver(LauncherActor());
}

}  // namespace sgactor::actors
