#pragma once
#include "actors/runtime/coordinator.h"
#include "actors/runtime/training.h"
#include "actors/runtime/worker_assembly.h"
#include "transport/collectives/collectives.h"
#include "transport/core/message_fabric.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace sgactor::tests {

/// The bytes between workers of a run in one process: a fabric and collectives a worker.
class Links {
 public:
  /// `num_ranks` logical ranks on as many workers, rank r on r % num_workers. `faults` (none, or
  /// one a worker) is what a worker's frames meet. Blocks until all are connected.
  static Result<std::unique_ptr<Links>> create(int32_t num_ranks, int32_t num_workers,
                                               const std::vector<transport::FaultScript>& faults);
  [[nodiscard]] transport::Collectives& of(int32_t worker) {
    return *collectives_[static_cast<size_t>(worker)];
  }

 private:
  Links() = default;
  std::vector<std::unique_ptr<transport::Fabric>> fabrics_;
  std::vector<std::unique_ptr<transport::Collectives>> collectives_;
};

/// What a worker's memory holds of one logical rank.
struct Held {
  int64_t parameter_bytes = 0, moment_bytes = 0, accumulator_bytes = 0;
  int64_t arena_bytes = 0;  ///< allocated for the program
  [[nodiscard]] int64_t state_bytes() const {
    return parameter_bytes + moment_bytes + accumulator_bytes;
  }
};

struct WorkersRun {
  actors::RunOutcome outcome;
  std::vector<Held> held;  ///< index: logical rank
};

/// Runs with `num_workers` workers, rank r on r % num_workers, under one coordinator. `inputs`
/// names everything but the collectives. Blocks.
Result<WorkersRun> run_workers(const actors::TrainingSpec& spec, actors::TrainingInputs inputs,
                               int32_t num_workers, Links& links);

}  // namespace sgactor::tests
