#pragma once
#include "graph/base/status.h"

#include <fmt/format.h>

#include <cstdint>

namespace sgactor::actors {

/// A window of credits: the sender takes one a piece of work, the receiver gives it back when it is
/// done with the piece. Bounds what is under way. One caller at a time.
class CreditCore {
 public:
  explicit CreditCore(int64_t capacity) : capacity_(capacity), free_(capacity) {}

  /// False, and nothing changes, if fewer than `n` are free.
  [[nodiscard]] bool take(int64_t n = 1) {
    if (free_ < n) return false;
    free_ -= n;
    return true;
  }
  /// Errors: kInternal if more come back than are out; nothing changes then.
  Status give(int64_t n = 1) {
    if (free_ + n > capacity_) {
      return internal_error(fmt::format("{} credits returned, {} are out", n, capacity_ - free_));
    }
    free_ += n;
    return {};
  }
  [[nodiscard]] int64_t num_free() const { return free_; }
  [[nodiscard]] int64_t capacity() const { return capacity_; }

 private:
  int64_t capacity_;
  int64_t free_;
};

}  // namespace sgactor::actors
