#pragma once
#include "actors/runtime/training.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/progress.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/tensorboard_events.h"
#include "graph/base/status.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

namespace sgactor::apps {

class StatusBoard;

/// The line of metrics.jsonl, without newline: step, loss, loss_bits, grad_norm, lr, tokens, tok_s,
/// step_ms, tflops, mfu, mem_gib, overlap, generation. Numbers that are not finite or not known are
/// null. `loss_bits` is the FP32 loss in 8 hex digits; `mem_gib` the arena that is planned for a
/// rank; `mfu` the share of `peak_flops` (FLOP/s of all devices; 0: not known, null); `overlap`
/// null: only a trace tells it.
std::string metrics_line(const actors::StepReport& report, double flops_per_token,
                         int64_t memory_bytes, double peak_flops = 0);

/// FLOP/s of all devices of a run, by the first device of compile.topology's cluster, one a worker.
/// 0, which is not known: no topology, or one of another kind than `devices` ("cpu:2", "cuda:all").
/// A CPU states no peak, so without a topology that was measured there is none. `workers`: 0: a
/// worker for each of the mesh's degrees. Reads the file.
double known_peak_flops(const JobSpec& job, const std::string& devices, int64_t workers);

struct RecorderOptions {
  RunDirectory run;
  int64_t first_step = 1;
  int64_t last_step = 1;
  int64_t log_interval = 1;
  double flops_per_token = 0;
  int64_t memory_bytes = 0;
  double peak_flops = 0;          ///< of all devices; 0: not known
  std::string tensorboard;        ///< directory of an event file; empty: none
  StatusBoard* status = nullptr;  ///< is told too; null: nobody
};

/// Writes a run's files as it goes and prints a line a step on standard output. Appends; every line
/// is flushed. Called by the coordinator's thread alone; read after the run ended. The first
/// failure to write is kept and logged, the run goes on.
class RunRecorder : public actors::TrainingObserver {
 public:
  explicit RunRecorder(RecorderOptions options);
  /// Opens the files. Errors: kInternal with errno's text.
  Status open();
  /// A line of audit.jsonl: `{"time":…,"who":…,"what":…,<fields>}`; `fields` is JSON without
  /// braces, or empty.
  void audit(const std::string& who, const std::string& what, const std::string& fields = {});

  /// The plan has changed between two steps.
  void set_memory_bytes(int64_t bytes) { options_.memory_bytes = bytes; }

  void on_step(const actors::StepReport& report) override;
  void on_validation(int64_t step, double loss) override;
  void on_checkpoint(int64_t step, const std::string& path,
                     const transport::WriteStats& stats) override;
  void on_verified(const actors::VerifiedStep& verified) override;

  [[nodiscard]] const actors::StepReport& last_step() const { return last_; }
  [[nodiscard]] double last_validation() const { return validation_; }  ///< NaN before the first
  [[nodiscard]] int64_t num_tokens() const { return tokens_; }
  [[nodiscard]] int64_t num_checkpoints() const { return checkpoints_; }
  [[nodiscard]] Status status() const { return status_; }

 private:
  void write(std::ofstream& out, const std::string& file, const std::string& line);
  void show(const actors::StepReport& report, double seconds_left);
  void keep(const Status& status);

  RecorderOptions options_;
  std::ofstream metrics_, validations_, audit_;
  TensorBoardEvents events_;
  actors::StepReport last_;
  double validation_;
  int64_t tokens_ = 0;
  int64_t checkpoints_ = 0;
  TimeLeft time_left_;
  bool colour_;
  Status status_;
};

}  // namespace sgactor::apps
