#pragma once
#include "graph/base/status.h"
#include "transport/storage/dataset.h"

#include <cstdint>
#include <memory>
#include <span>

namespace sgactor::actors {

/// Where a feeder gets the micro-batches of one logical rank. Each is a pure function of (step,
/// micro-batch). Called on the data service, one call at a time; may block.
class BatchSource {
 public:
  struct StepNumbers {
    int64_t valid_tokens = 0;  ///< of the whole global batch
    uint64_t sample_hash = 0;
  };
  virtual ~BatchSource() = default;
  /// Fills one micro-batch. Both spans have the element count of a batch buffer, or are empty for a
  /// program that has none; one of them is not. Not called for a program that reads neither.
  virtual Status fill(int64_t step, int32_t micro_batch, std::span<int32_t> tokens,
                      std::span<int32_t> targets) = 0;
  /// Asked after fill(step, 0, …), if that is called.
  virtual Result<StepNumbers> numbers(int64_t step) = 0;
};

/// Rows of the sampler's global batch: data-parallel rank d takes the d-th run of
/// num_micro_batches * rows. Borrows the sampler.
std::unique_ptr<BatchSource> create_training_source(const transport::Sampler& sampler,
                                                    int32_t dp_rank, int32_t num_micro_batches,
                                                    int64_t rows);
/// The same `num_batches` micro-batches again and again: step s takes rows [0, rows) of the
/// sampler's step 1 + (s - 1) % num_batches. Borrows the sampler.
std::unique_ptr<BatchSource> create_validation_source(const transport::Sampler& sampler,
                                                      int64_t num_batches);

}  // namespace sgactor::actors
