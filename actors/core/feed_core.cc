#include "actors/core/feed_core.h"

namespace sgactor::actors {

FeedCore::FeedCore(int64_t first_step, int64_t last_step, int32_t num_micro_batches,
                   int32_t num_slots)
    : first_step_(first_step),
      last_step_(last_step),
      num_micro_batches_(num_micro_batches),
      credits_(num_slots) {}

FeedCore::Item FeedCore::item(int64_t sequence) const {
  return {first_step_ + sequence / num_micro_batches_,
          static_cast<int32_t>(sequence % num_micro_batches_),
          static_cast<int32_t>(sequence % credits_.capacity())};
}

std::optional<FeedCore::Item> FeedCore::next_to_prepare() {
  const Item next = item(next_prepare_);
  if (next.step > last_step_ || !credits_.take()) return std::nullopt;
  ++next_prepare_;
  return next;
}

Status FeedCore::on_prepared(int64_t step, int32_t micro_batch) {
  if (sequence(step, micro_batch) != next_prepared_ || next_prepared_ >= next_prepare_) {
    return internal_error(
        fmt::format("step {} micro-batch {} was not under preparation", step, micro_batch));
  }
  ++next_prepared_;
  return {};
}

std::optional<FeedCore::Item> FeedCore::prepared(int64_t step, int32_t micro_batch) const {
  const int64_t s = sequence(step, micro_batch);
  if (s < next_consumed_ || s >= next_prepared_) return std::nullopt;
  return item(s);
}

Status FeedCore::on_consumed(int64_t step, int32_t micro_batch) {
  if (sequence(step, micro_batch) != next_consumed_ || next_consumed_ >= next_prepared_) {
    return internal_error(
        fmt::format("step {} micro-batch {} was not in staging", step, micro_batch));
  }
  ++next_consumed_;
  return credits_.give();
}

}  // namespace sgactor::actors
