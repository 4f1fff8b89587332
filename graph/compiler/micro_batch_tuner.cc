#include "graph/compiler/micro_batch_tuner.h"

#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr int32_t kBetweenTries = 2;  // one on each side

std::vector<int64_t> divisors(int64_t n, int64_t max) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= std::min(n, max); ++d) {
    if (n % d == 0) found.push_back(d);
  }
  return found;
}

}  // namespace

Result<MicroBatchTuner> MicroBatchTuner::create(const TunerOptions& o) {
  if (o.batch < 1 || o.start < 1 || o.batch % o.start != 0 || o.start > o.max_size) {
    return invalid_argument(
        fmt::format("micro-batch size {} does not divide the batch {} or is above {}", o.start,
                    o.batch, o.max_size));
  }
  if (o.measured_steps < 1 || o.warmup_steps < 0 || !(o.min_gain >= 0 && o.min_gain < 1))
    return invalid_argument("micro-batch tuner: an option is out of range");
  return MicroBatchTuner(o);
}

MicroBatchTuner::MicroBatchTuner(const TunerOptions& options)
    : options_(options),
      sizes_(divisors(options.batch, options.max_size)),
      tried_{options.start},
      size_(options.start),
      best_(options.start),
      settled_(sizes_.size() == 1) {}

int32_t MicroBatchTuner::steps_needed() const {
  if (settled_) return 0;
  const int32_t all = options_.warmup_steps + options_.measured_steps;
  return std::max(0, all - static_cast<int32_t>(steps_.size()));
}

void MicroBatchTuner::observe(const StepMeasure& step) {
  if (!settled_) steps_.push_back(step);
}

bool MicroBatchTuner::was_tried(int64_t size) const {
  return std::find(tried_.begin(), tried_.end(), size) != tried_.end();
}

int64_t MicroBatchTuner::above(int64_t size) const {
  const auto twice = std::lower_bound(sizes_.begin(), sizes_.end(), 2 * size);
  const int64_t candidate = twice != sizes_.end() ? *twice : sizes_.back();
  return candidate > size && !was_tried(candidate) ? candidate : 0;
}

int64_t MicroBatchTuner::below(int64_t size) const {
  if (size == sizes_.front()) return 0;
  const auto behind_half = std::upper_bound(sizes_.begin(), sizes_.end(), size / 2);
  const int64_t candidate = behind_half == sizes_.begin() ? sizes_.front() : *(behind_half - 1);
  return candidate < size && !was_tried(candidate) ? candidate : 0;
}

int64_t MicroBatchTuner::between() const {
  int64_t low = 0;
  int64_t high = 0;
  for (int64_t s : tried_) {
    if (s < best_) low = std::max(low, s);
    if (s > best_ && (high == 0 || s < high)) high = s;
  }
  // The middle one of the untried sizes of a gap: the farthest from what is known.
  const auto middle = [&](int64_t from, int64_t to) -> int64_t {
    std::vector<int64_t> inside;
    for (int64_t s : sizes_) {
      if (s > from && s < to) inside.push_back(s);
    }
    return inside.empty() ? 0 : inside[inside.size() / 2];
  };
  const int64_t up = high > 0 ? middle(best_, high) : 0;
  const int64_t down = low > 0 ? middle(low, best_) : 0;
  // The second look goes to the side where the first was not.
  const bool down_first = between_tries_ > 1 && tried_.back() > best_;
  if (down_first) return down > 0 ? down : up;
  return up > 0 ? up : down;
}

int64_t MicroBatchTuner::next_size(bool gained) {
  if (phase_ == Phase::kUp) {
    if (gained || best_ == options_.start) {
      const int64_t up = gained ? above(best_) : 0;
      if (up > 0) return up;
    }
    // What was a gain upwards is none downwards: the valley is behind.
    phase_ = best_ == options_.start ? Phase::kDown : Phase::kBetween;
    gained = true;
  }
  if (phase_ == Phase::kDown) {
    const int64_t down = gained ? below(best_) : 0;
    if (down > 0) return down;
    phase_ = Phase::kBetween;
  }
  if (between_tries_ == kBetweenTries) return 0;
  ++between_tries_;
  return between();
}

TunerDecision MicroBatchTuner::move_on(bool gained, std::string reason) {
  TunerDecision decision{size_, size_, false, {}, std::move(reason)};
  const int64_t next = next_size(gained);
  if (next > 0) {
    tried_.push_back(next);
    decision.to = next;
    decision.reason += fmt::format("; tries {}", next);
  } else {
    settled_ = true;
    decision.to = best_;
    decision.settled = true;
    decision.reason += fmt::format("; settles at {}", best_);
  }
  size_ = decision.to;
  steps_.clear();
  return decision;
}

TunerDecision MicroBatchTuner::decide() {
  SGA_CHECK(!settled_ && steps_needed() == 0, "the tuner has not seen its steps");
  const StepMeasure step = *std::min_element(
      steps_.begin() + options_.warmup_steps, steps_.end(),
      [](const StepMeasure& a, const StepMeasure& b) { return a.seconds < b.seconds; });
  const double seconds = step.seconds;
  const bool first = best_seconds_ == 0;
  const bool gained = first || seconds * (1 + options_.min_gain) < best_seconds_;
  std::string reason = fmt::format("{} a step with {}", format_seconds(seconds), size_);
  if (step.busy_share > 0) {
    reason += fmt::format(" ({:.0f} % of it computing, {}/s)", 100 * step.busy_share,
                          format_bytes(static_cast<int64_t>(step.bytes_per_s)));
  }
  if (!first) reason += fmt::format(", {} with {}", format_seconds(best_seconds_), best_);
  if (gained) {
    best_ = size_;
    best_seconds_ = seconds;
  }
  TunerDecision decision = move_on(gained, std::move(reason));
  decision.measured = step;
  return decision;
}

TunerDecision MicroBatchTuner::reject(const std::string& why) {
  SGA_CHECK(steps_.empty(), "the rejected size has run");
  return move_on(false, fmt::format("{} cannot run: {}", size_, why));
}

}  // namespace sgactor::graph
