#pragma once
#include "actors/core/credit_core.h"
#include "graph/base/status.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace sgactor::actors {

/// The feeder's ring of staging slots. Micro-batches are prepared ahead in order, as far as slots
/// are free, and are gone when their copy into the arena is complete. With at most two steps' worth
/// of slots a step's numbers may share the ring (slot of numbers: step % 2). One caller at a time.
class FeedCore {
 public:
  FeedCore() = default;
  /// Pre: num_slots in [1, 2 * num_micro_batches].
  FeedCore(int64_t first_step, int64_t last_step, int32_t num_micro_batches, int32_t num_slots);

  struct Item {
    int64_t step = 0;
    int32_t micro_batch = 0;
    int32_t slot = 0;
    friend bool operator==(const Item&, const Item&) = default;
  };
  /// Next one to prepare, if a slot is free and there is more to feed; takes the slot.
  std::optional<Item> next_to_prepare();
  /// It is in staging. Errors: kInternal if it is not the oldest one under preparation.
  Status on_prepared(int64_t step, int32_t micro_batch);
  /// Where it lies, if it is in staging.
  [[nodiscard]] std::optional<Item> prepared(int64_t step, int32_t micro_batch) const;
  /// Its copy is complete; the slot is free. Errors: kInternal if it was not the oldest one in
  /// staging.
  Status on_consumed(int64_t step, int32_t micro_batch);

  [[nodiscard]] int32_t num_slots() const { return static_cast<int32_t>(credits_.capacity()); }

 private:
  [[nodiscard]] int64_t sequence(int64_t step, int32_t micro_batch) const {
    return (step - first_step_) * num_micro_batches_ + micro_batch;
  }
  [[nodiscard]] Item item(int64_t sequence) const;

  int64_t first_step_ = 1;
  int64_t last_step_ = 0;
  int32_t num_micro_batches_ = 1;
  CreditCore credits_{0};
  int64_t next_prepare_ = 0;   // sequences below are taken
  int64_t next_prepared_ = 0;  // below: in staging
  int64_t next_consumed_ = 0;  // below: gone
};

}  // namespace sgactor::actors
