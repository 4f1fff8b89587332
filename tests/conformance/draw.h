#pragma once
#include "graph/base/philox.h"

#include <cstdint>

namespace sgactor::testing {

/// Where a generated case takes its choices from: a counter-based stream, or rapidcheck (which then
/// shrinks them).
class Draw {
 public:
  virtual ~Draw() = default;
  /// An integer in [low, high]. Pre: low <= high.
  virtual int64_t integer(int64_t low, int64_t high) = 0;
};

class PhiloxDraw final : public Draw {
 public:
  explicit PhiloxDraw(uint64_t seed) : stream_{seed, 0x6361736573} {}
  int64_t integer(int64_t low, int64_t high) override {
    return low +
           static_cast<int64_t>(stream_.below(next_++, static_cast<uint64_t>(high - low + 1)));
  }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

}  // namespace sgactor::testing
