#pragma once
#include "actors/runtime/training.h"
#include "graph/compiler/pipeline.h"
#include "kernels/backend/backend.h"
#include "tests/support/mesh_executor.h"
#include "tests/support/plan_executor.h"
#include "transport/collectives/collectives.h"
#include "transport/core/manual_progress.h"
#include "transport/inproc/inproc_fabric.h"
#include "transport/storage/dataset.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::testing_support {

/// A training job of a few thousand parameters, with all that run_training borrows.
class TrainingRig {
 public:
  struct Options {
    std::string backend = "symbolic";  ///< symbolic, reference, cpu
    int32_t num_micro_batches = 2;
    int64_t micro_batch_size = 2;
    int64_t seq_len = 8;
    bool validation = false;
    int32_t num_threads = 1;  ///< of the cpu backend
    graph::MeshShape mesh;
    int32_t zero_stage = 0;
    graph::PipelineSchedule pipeline = graph::PipelineSchedule::k1F1B;
    int32_t chunks_per_stage = 1;
    int32_t num_processes = 1;  ///< each with a fabric of its own: rank r is on r % num_processes
    bool manual_progress = false;  ///< of all fabrics: the test drives `progress`
  };
  static Result<std::unique_ptr<TrainingRig>> create(const Options& options);

  /// Inputs of a run, on the first process; `observer` may be null.
  [[nodiscard]] actors::TrainingInputs inputs(actors::TrainingObserver* observer) const;
  /// The same steps without actors: executed up to and including `last_step` from the start.
  struct Expected {
    std::vector<float> losses;  ///< one a step
    std::vector<float> grad_norms;
    std::unique_ptr<PlanExecutor> executor;  ///< for its state; null if there are several ranks
    std::unique_ptr<MeshExecutor> mesh;      ///< else
  };
  Result<Expected> run_without_actors(int64_t last_step) const;
  /// Names of parameters and moments.
  [[nodiscard]] std::vector<graph::Buffer> state_buffers() const;

  Options options;
  std::unique_ptr<kernels::Backend> backend;
  graph::Plan plan;
  graph::Plan validation_plan;
  transport::Datasets data;
  std::unique_ptr<transport::Sampler> sampler;
  std::unique_ptr<transport::Sampler> validation_sampler;
  std::shared_ptr<const transport::StateSource> state;
  std::shared_ptr<transport::ManualProgress> progress;  ///< null: fabrics have threads
  std::vector<std::unique_ptr<transport::Fabric>> fabrics;
  std::vector<std::unique_ptr<transport::Collectives>> collectives;  ///< one a process

 private:
  Status connect();
  Result<Expected> run_mesh_without_actors(int64_t last_step) const;
};

/// Keeps what it is told.
class RecordingObserver : public actors::TrainingObserver {
 public:
  void on_step(const actors::StepReport& report) override {
    steps.push_back(report);
    if (stop_at > 0 && report.step == stop_at) stop.store(true);
  }
  void on_validation(int64_t step, double loss) override { validations.emplace_back(step, loss); }
  void on_checkpoint(int64_t step, const std::string& path,
                     const transport::WriteStats& /*stats*/) override {
    checkpoints.emplace_back(step, path);
  }

  std::vector<actors::StepReport> steps;
  std::vector<std::pair<int64_t, double>> validations;
  std::vector<std::pair<int64_t, std::string>> checkpoints;
  int64_t stop_at = 0;  ///< raises `stop` when this step is done
  std::atomic<bool> stop{false};
};

/// Bit patterns, so that comparing tells every difference.
std::vector<uint32_t> bits(const std::vector<float>& values);
std::vector<float> losses(const std::vector<actors::StepReport>& steps);
std::vector<float> grad_norms(const std::vector<actors::StepReport>& steps);

}  // namespace sgactor::testing_support
