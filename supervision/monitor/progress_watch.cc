#include "supervision/monitor/progress_watch.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace sgactor::supervision {

void ProgressWatch::on_step(double ms) {
  if (steps_.size() < kMostSteps) {
    steps_.push_back(ms);
  } else {
    steps_[num_steps_ % kMostSteps] = ms;
  }
  ++num_steps_;
}

void ProgressWatch::on_count(int32_t worker, int64_t count, int64_t now_ms) {
  const auto [it, fresh] = counts_.try_emplace(worker, count);
  // A worker that begins again counts from 0.
  if (!fresh && it->second == count) return;
  it->second = count;
  risen_ms_ = now_ms;
}

int64_t ProgressWatch::limit_ms() const {
  constexpr size_t kEnough = 3;
  double step_ms = kGuessFactor * expected_step_ms_;
  int64_t floor_ms = std::max(floor_ms_, kGuessFloorMs);
  if (steps_.size() >= kEnough) {
    std::vector<double> sorted = steps_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    step_ms = *middle;
    floor_ms = floor_ms_;
  }
  if (step_ms <= 0) return std::numeric_limits<int64_t>::max();
  const double limit_ms = factor_ * step_ms;
  if (limit_ms >= static_cast<double>(std::numeric_limits<int64_t>::max()) / 2) {
    return std::numeric_limits<int64_t>::max();
  }
  return std::max(floor_ms, static_cast<int64_t>(limit_ms));
}

bool ProgressWatch::stands_still(int64_t now_ms) const {
  return factor_ > 0 && risen_ms_ >= 0 && still_ms(now_ms) >= limit_ms();
}

}  // namespace sgactor::supervision
