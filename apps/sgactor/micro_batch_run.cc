#include "apps/sgactor/micro_batch_run.h"

#include "apps/sgactor/device.h"
#include "graph/base/hash.h"
#include "graph/compiler/micro_batch_tuner.h"
#include "transport/storage/checkpoint.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

namespace sgactor::apps {
namespace {

using graph::MicroBatchTuner;
using graph::TunerDecision;

/// Bytes that the ops of a step of all ranks read and write.
double step_bytes(const graph::Plan& plan) {
  double bytes = 0;
  for (const graph::RankPlacement& rank : plan.ranks) {
    const graph::RankProgram& program = plan.programs[static_cast<size_t>(rank.program)];
    for (const graph::Firing& f : program.lanes[0].order) {
      const graph::Launch& l = program.launches[static_cast<size_t>(f.launch)];
      bytes += static_cast<double>(plan.subgraphs[static_cast<size_t>(l.subgraph)].bytes_moved);
    }
  }
  return bytes;
}

/// Hands everything on and shows the tuner each step's time.
class StepClock : public actors::TrainingObserver {
 public:
  StepClock(actors::TrainingObserver& next, MicroBatchTuner& tuner, const graph::Plan& plan)
      : next_(next), tuner_(tuner), plan_(plan) {}

  void on_step(const actors::StepReport& report) override {
    last_step_ = report.step;
    graph::StepMeasure step;
    step.seconds = std::max(report.step_ms, 1e-6) * 1e-3;
    step.busy_share = report.kernel_ms * 1e-3 / step.seconds;
    step.bytes_per_s = step_bytes(plan_) / step.seconds;
    tuner_.observe(step);
    next_.on_step(report);
  }
  void on_validation(int64_t step, double loss) override { next_.on_validation(step, loss); }
  void on_checkpoint(int64_t step, const std::string& path,
                     const transport::WriteStats& stats) override {
    path_ = path;
    next_.on_checkpoint(step, path, stats);
  }
  /// Of the newest checkpoint.
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int64_t last_step() const { return last_step_; }

 private:
  actors::TrainingObserver& next_;
  MicroBatchTuner& tuner_;
  const graph::Plan& plan_;  // replaced in place between pieces
  std::string path_;
  int64_t last_step_ = 0;
};

JobSpec with_size(const JobSpec& job, int64_t size) {
  JobSpec sized = job;
  sized.training.micro_batch_size = size;
  return sized;
}

/// Errors: kOutOfMemory: the size takes too much. Others are the job's.
Result<CompiledJob> compile_size(const TunedRun& run, int64_t size) {
  auto sized = compile_job(with_size(run.job, size), storage_model(run.backend), {}, &run.cache);
  if (!sized.ok()) {
    // The run's own size meets the budget.
    const Status& s = sized.status();
    const bool budget =
        s.code() == Code::kInvalidArgument && !run.job.training.memory_budget.empty();
    return budget ? Status(Code::kOutOfMemory, s.scope(), s.message(), s.origin()) : s;
  }
  CompiledJob compiled = std::move(*sized);
  SGA_TRY(check_memory(compiled.compiled.plan, run.backend,
                       {.beside = {.validation = run.validation, .snapshots = true}}));
  return compiled;
}

void record(const TunedRun& run, int64_t step, const TunerDecision& d, const graph::Plan& plan) {
  const std::string reason =
      nlohmann::json(d.reason).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  run.recorder.audit(
      "micro_batch_tuner", "micro_batch_size",
      fmt::format("\"step\":{},\"from\":{},\"to\":{},\"settled\":{},\"reason\":{},"
                  "\"busy_share\":{:.4f},\"bytes_per_s\":{:.0f},"
                  "\"planned_bytes\":{},\"schema_hash\":\"{}\"",
                  step, d.from, d.to, d.settled, reason, d.measured.busy_share,
                  d.measured.bytes_per_s, plan.memory.planned_bytes, hex64(plan.schema_hash)));
  std::printf("step %lld  micro-batch size %lld -> %lld: %s\n", static_cast<long long>(step),
              static_cast<long long>(d.from), static_cast<long long>(d.to), d.reason.c_str());
  std::fflush(stdout);
}

/// Makes run.compiled, of size `in_use`, the plan of what was decided after `step`.
Status change_size(const TunedRun& run, MicroBatchTuner& tuner, TunerDecision decision,
                   int64_t in_use, int64_t step) {
  while (decision.to != in_use) {
    auto compiled = compile_size(run, decision.to);
    if (compiled.ok()) {
      run.compiled = std::move(*compiled);
      break;
    }
    // Any other failure would meet the run's own size too, and the user with its name.
    if (compiled.status().code() != Code::kOutOfMemory) return compiled.status();
    record(run, step, decision, run.compiled.compiled.plan);
    decision = tuner.reject(compiled.status().message());
  }
  decision.from = in_use;
  record(run, step, decision, run.compiled.compiled.plan);
  run.recorder.set_memory_bytes(run.compiled.compiled.plan.memory.planned_bytes);
  return {};
}

/// Steps from `first` on that run with one size.
actors::TrainingSpec piece_of(const TunedRun& run, const actors::TrainingSpec& spec,
                              const MicroBatchTuner& tuner, int64_t first) {
  actors::TrainingSpec piece = spec;
  piece.first_step = first;
  if (!tuner.settled()) {
    piece.last_step = std::min(spec.last_step, first + tuner.steps_needed() - 1);
    // The runtime also validates after the last step, which is none of the run's here.
    const bool due = spec.validation_interval > 0 && piece.last_step / spec.validation_interval !=
                                                         (first - 1) / spec.validation_interval;
    if (piece.last_step != spec.last_step && !due) piece.validation_interval = 0;
  }
  if (piece.last_step != spec.last_step) piece.final_checkpoint = true;
  if (first != spec.first_step) piece.trace_file.clear();
  piece.checkpoint_template.schema_hash = run.compiled.compiled.plan.schema_hash;
  piece.checkpoint_template.graph = run.compiled.graph_bytes;
  piece.checkpoint_template.job = sized_job(run.job, tuner.size());
  return piece;
}

void add_summary(actors::TrainingSummary& total, const actors::TrainingSummary& piece) {
  const double seconds = total.seconds + piece.seconds;
  const double kernel_seconds = total.kernel_seconds + piece.kernel_seconds;
  const int64_t num_messages = total.num_messages + piece.num_messages;
  total = piece;  // allocations and high water are of the last plan
  total.seconds = seconds;
  total.kernel_seconds = kernel_seconds;
  total.num_messages = num_messages;
}

}  // namespace

std::string sized_job(const JobSpec& job, int64_t micro_batch_size) {
  JobSpec sized = with_size(job, micro_batch_size);
  if (job.training.auto_micro_batch) sized.training.micro_batch_start = micro_batch_size;
  return write_job(sized, false);
}

Result<actors::TrainingSummary> run_tuned(const TunedRun& run, const actors::TrainingSpec& spec,
                                          actors::TrainingInputs inputs) {
  graph::TunerOptions options;
  options.batch = run.job.rank_batch_size();
  options.start = run.job.training.micro_batch_size;
  SGA_ASSIGN(MicroBatchTuner tuner, MicroBatchTuner::create(options));
  StepClock clock(*inputs.observer, tuner, run.compiled.compiled.plan);
  inputs.observer = &clock;
  std::unique_ptr<transport::Checkpoint> state;
  actors::TrainingSummary total;
  int64_t ran = tuner.size();  // the last size that has done a step
  for (int64_t first = spec.first_step;;) {
    const actors::TrainingSpec piece = piece_of(run, spec, tuner, first);
    const int64_t size = tuner.size();
    const auto summary = actors::run_training(piece, inputs);
    if (!summary.ok()) {
      // The device has less than it said, or backends keep more beside the arena: the state is
      // still that of the step before.
      const bool goes_back = summary.status().code() == Code::kOutOfMemory && size != ran &&
                             !tuner.settled() && clock.last_step() < first;
      if (!goes_back) return summary.status();
      SGA_TRY(change_size(run, tuner, tuner.reject(summary.status().message()), size, first - 1));
      continue;
    }
    ran = size;
    add_summary(total, *summary);
    if (summary->interrupted || piece.last_step == spec.last_step) return total;
    SGA_TRY(change_size(run, tuner, tuner.decide(), size, piece.last_step));
    SGA_ASSIGN(state, transport::Checkpoint::open(clock.path()));
    inputs.initial_state = state.get();
    first = piece.last_step + 1;
  }
}

}  // namespace sgactor::apps
