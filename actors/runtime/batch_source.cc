#include "actors/runtime/batch_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace sgactor::actors {
namespace {

class TrainingSource final : public BatchSource {
 public:
  TrainingSource(const transport::Sampler& sampler, int32_t dp_rank, int32_t num_micro_batches,
                 int64_t rows)
      : sampler_(sampler), first_row_(int64_t{dp_rank} * num_micro_batches * rows), rows_(rows) {}

  Status fill(int64_t step, int32_t micro_batch, std::span<int32_t> tokens,
              std::span<int32_t> targets) override {
    // A program may read one of the two only: the sampler fills both all the same.
    unused_.resize(std::max(tokens.size(), targets.size()));
    if (targets.empty()) targets = unused_;
    if (tokens.empty()) tokens = unused_;
    sampler_.fill(step, first_row_ + micro_batch * rows_, tokens, targets);
    return {};
  }
  Result<StepNumbers> numbers(int64_t step) override {
    const StepNumbers n{sampler_.valid_tokens(step), sampler_.sample_hash(step)};
    if (n.valid_tokens <= 0) {
      return invalid_argument(fmt::format("data: step {} has no token to predict", step));
    }
    return n;
  }

 private:
  const transport::Sampler& sampler_;
  int64_t first_row_;
  int64_t rows_;
  std::vector<int32_t> unused_;
};

class ValidationSource final : public BatchSource {
 public:
  ValidationSource(const transport::Sampler& sampler, int64_t num_batches)
      : sampler_(sampler), num_batches_(num_batches) {}

  Status fill(int64_t step, int32_t /*micro_batch*/, std::span<int32_t> tokens,
              std::span<int32_t> targets) override {
    sampler_.fill(sampler_step(step), 0, tokens, targets);
    valid_ = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    return {};
  }
  Result<StepNumbers> numbers(int64_t step) override {
    if (valid_ <= 0) return invalid_argument("data: a validation batch has no token to predict");
    return StepNumbers{valid_, sampler_.sample_hash(sampler_step(step))};
  }

 private:
  [[nodiscard]] int64_t sampler_step(int64_t step) const { return 1 + (step - 1) % num_batches_; }

  const transport::Sampler& sampler_;
  int64_t num_batches_;
  int64_t valid_ = 0;
};

}  // namespace

std::unique_ptr<BatchSource> create_training_source(const transport::Sampler& sampler,
                                                    int32_t dp_rank, int32_t num_micro_batches,
                                                    int64_t rows) {
  return std::make_unique<TrainingSource>(sampler, dp_rank, num_micro_batches, rows);
}

std::unique_ptr<BatchSource> create_validation_source(const transport::Sampler& sampler,
                                                      int64_t num_batches) {
  return std::make_unique<ValidationSource>(sampler, num_batches);
}

}  // namespace sgactor::actors
