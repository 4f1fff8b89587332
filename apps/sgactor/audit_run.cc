#include "apps/sgactor/audit_run.h"

#include "actors/runtime/training.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/float_bits.h"
#include "apps/sgactor/local_plane.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/training_setup.h"
#include "apps/sgactor/training_spec.h"
#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sgactor::apps {
namespace {

constexpr const char* kHint = "an audit has all ranks of the run in one process";

/// Compares steps as they come.
class Comparer : public actors::TrainingObserver {
 public:
  Comparer(const AuditWork& work, AuditResult& result) : work_(work), result_(result) {}

  void on_step(const actors::StepReport& r) override {
    if (r.step >= work_.first_compared) {
      ++result_.steps;
      const auto bits = float_bits(r.loss);
      const auto& record = *work_.record;
      result_.other_losses += compare(r.step, "loss_bits", record.loss_bits, bits);
      // A coordinator that was killed between the two files has a loss of the step and no hash.
      if (!record.samples.contains(r.step)) {
        ++result_.unknown_samples;
      } else {
        result_.other_samples +=
            compare(r.step, "sample_hash", record.samples, hex64(r.sample_hash));
      }
    }
    if (work_.on_step) work_.on_step(r.step);
  }
  void on_validation(int64_t, double) override {}
  void on_checkpoint(int64_t, const std::string& path, const transport::WriteStats&) override {
    checkpoint_ = path;
  }
  /// The newest in the scratch directory.
  [[nodiscard]] const std::string& checkpoint() const { return checkpoint_; }

 private:
  int64_t compare(int64_t step, const char* what, const std::map<int64_t, std::string>& record,
                  const std::string& is) {
    const auto it = record.find(step);
    const std::string was = it == record.end() ? "" : it->second;
    if (was == is) return 0;
    result_.differences.push_back({step, what, was, is});
    if (work_.on_difference) work_.on_difference(result_.differences.back());
    return 1;
  }

  const AuditWork& work_;
  AuditResult& result_;
  std::string checkpoint_;
};

/// The spec of a run without all that leaves no trace in bits.
actors::TrainingSpec quiet_spec(const AuditWork& work, const AuditPiece& piece, bool keeps) {
  const RunDirectory scratch{work.scratch};
  const int32_t threads = std::max(2, std::min(work.backend->info().num_threads, 8));
  actors::TrainingSpec spec =
      training_spec(piece.job, scratch, piece.first, /*validates=*/false, threads);
  spec.last_step = piece.last;
  spec.checkpoint_interval = 0;
  spec.keep_checkpoints = 0;
  spec.final_checkpoint = keeps;
  spec.journal_file.clear();
  spec.verify_interval = 0;
  spec.replicas = false;
  spec.trace_steps = 0;
  spec.trace_file.clear();
  if (!keeps) spec.checkpoint_root.clear();
  return spec;
}

Status check_graph(const transport::CheckpointInfo& info, const graph::Plan& plan) {
  if (info.schema_hash == plan.schema_hash) return {};
  return invalid_argument(fmt::format(
      "{}: its training graph is another (schema_hash {}) than this build makes of the run's job "
      "({}); --steps 1.. begins without a checkpoint",
      info.path, hex64(info.schema_hash), hex64(plan.schema_hash)));
}

/// What a piece begins with: a checkpoint, or what the job begins with.
struct State {
  std::unique_ptr<transport::Checkpoint> checkpoint;
  Start fresh;
  [[nodiscard]] const transport::StateSource* get() const {
    return checkpoint != nullptr ? checkpoint.get() : fresh.state.get();
  }
};

Result<State> open_state(const AuditPiece& piece, const TrainingSetup& setup,
                         const std::string& path) {
  State out;
  if (path.empty()) {
    SGA_ASSIGN(out.fresh, fresh_start(piece.job, setup.training.config));
  } else {
    SGA_ASSIGN(out.checkpoint, transport::Checkpoint::open(path));
  }
  return out;
}

Result<actors::TrainingSummary> run_piece(const AuditWork& work, const AuditPiece& piece,
                                          bool keeps, const std::string& from, Comparer& comparer) {
  SGA_ASSIGN(TrainingSetup setup, set_up_training(piece.job, storage_model(*work.backend)));
  const graph::Plan& plan = setup.training.compiled.plan;
  SGA_TRY(check_memory(plan, *work.backend, {.beside = {.snapshots = keeps}, .hint = kHint}));
  SGA_ASSIGN(const State state, open_state(piece, setup, from));
  if (from == work.checkpoint && state.checkpoint != nullptr) {
    SGA_TRY(check_graph(state.checkpoint->info(), plan));
  }
  SGA_ASSIGN(const auto plane, create_local_plane(plan));
  actors::TrainingSpec spec = quiet_spec(work, piece, keeps);
  describe_job(piece.job, setup.training, spec);
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.backend = work.backend;
  inputs.collectives = &plane->collectives();
  inputs.sampler = setup.data.sampler.get();
  inputs.initial_state = state.get();
  inputs.observer = &comparer;
  inputs.stop = work.stop;
  return actors::run_training(spec, inputs);
}

}  // namespace

Result<AuditResult> run_audit(const AuditWork& work) {
  AuditResult result;
  Comparer comparer(work, result);
  std::string from = work.checkpoint;
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    const bool last = i + 1 == work.pieces.size();
    const bool keeps = !last || !work.final_checkpoint.empty();
    SGA_ASSIGN(const auto summary, run_piece(work, work.pieces[i], keeps, from, comparer));
    result.interrupted = summary.interrupted;
    if (result.interrupted) return result;
    from = comparer.checkpoint();
  }
  if (work.final_checkpoint.empty()) return result;
  SGA_ASSIGN(const auto was, transport::Checkpoint::open(work.final_checkpoint));
  SGA_ASSIGN(const auto is, transport::Checkpoint::open(from));
  SGA_ASSIGN(result.state, compare_checkpoints(*was, *is));
  return result;
}

}  // namespace sgactor::apps
