#pragma once
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"
#include "transport/storage/state_source.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sgactor::testing_support {

/// Runs the plan of one logical rank on one backend, synchronously on the calling thread: what the
/// runtime does, without actors, so that tests can compare numbers. Copies nothing: `plan` and
/// `backend` must outlive it. Only plans with one lane and without communication.
class PlanExecutor {
  friend class MeshExecutor;

 public:
  /// Compiles every subgraph and allocates the arena. Errors: the backend's; kUnsupported for a
  /// launch that communicates; kInvalidArgument if the plan's sizes are not the backend's.
  static Result<std::unique_ptr<PlanExecutor>> create(const graph::Plan& plan,
                                                      kernels::Backend& backend, int32_t rank = 0);

  /// Fills every parameter and moment.
  Status load_state(const transport::StateSource& source);
  /// Sets a kScalar buffer ("step", "inv_valid_tokens"), rounded to its dtype.
  Status set_scalar(const std::string& name, double value);
  /// Fills every accumulator with zeros.
  Status zero_accumulators();

  struct MicroBatch {
    std::span<const int32_t> tokens;
    std::span<const int32_t> targets;  ///< may be empty if the plan has none
  };
  /// Zeroes accumulators, sets "step" and "inv_valid_tokens" where the plan has them, fills batches
  /// and runs every firing in lane order, each complete before the next. One micro-batch for each
  /// of the program.
  Status run_step(int64_t step, double inv_valid_tokens, std::span<const MicroBatch> micro_batches);

  /// A buffer's elements as f64, whatever its dtype. Errors: kInvalidArgument if there is none.
  Result<std::vector<double>> read(const std::string& name, int32_t slot = 0) const;
  /// Its bytes in native form.
  Result<std::vector<std::byte>> read_bytes(const std::string& name, int32_t slot = 0) const;

 private:
  PlanExecutor(const graph::Plan& plan, const graph::RankProgram& program,
               kernels::Backend& backend)
      : plan_(plan), program_(program), backend_(backend) {}

  static Result<std::unique_ptr<PlanExecutor>> create_member(const graph::Plan& plan,
                                                             kernels::Backend& backend,
                                                             int32_t rank);
  Status compile();
  Status check_alone() const;
  Status check_sizes() const;
  [[nodiscard]] const graph::Buffer* find(const std::string& name) const;
  [[nodiscard]] std::byte* address(graph::BufferId buffer, int32_t micro_batch) const;
  Status write(const graph::Buffer& buffer, int32_t slot, std::span<const std::byte> native);
  Status fill_batch(int32_t micro_batch, const MicroBatch& data);
  Status fire(const graph::Firing& firing);

  const graph::Plan& plan_;
  const graph::RankProgram& program_;
  kernels::Backend& backend_;
  std::vector<std::unique_ptr<kernels::Executable>> executables_;  ///< one a subgraph
  std::unique_ptr<kernels::DeviceMemory> arena_;
  std::unique_ptr<kernels::DeviceMemory> scratch_;
  std::unique_ptr<kernels::Stream> stream_;
};

}  // namespace sgactor::testing_support
