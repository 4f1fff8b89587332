#include "apps/sgactor/replay_check.h"

#include "transport/storage/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>

namespace sgactor::apps {
namespace {

constexpr size_t kMostPoints = 64;

}  // namespace

ReplayCheck::ReplayCheck(actors::TrainingObserver* recorder, Point start, std::string mirror_root,
                         int64_t validation_interval)
    : recorder_(recorder),
      start_(std::move(start)),
      mirror_root_(std::move(mirror_root)),
      validation_interval_(validation_interval),
      on_disk_(start_.step),
      at_step_(start_.step) {}

void ReplayCheck::on_step(const actors::StepReport& report) {
  {
    const std::lock_guard lock(mutex_);
    at_step_ = report.step;
    const Facts now{std::bit_cast<uint32_t>(report.loss), report.sample_hash};
    const auto index = static_cast<size_t>(report.step - start_.step - 1);
    if (index < steps_.size()) {
      ++num_replayed_;
      const Facts& then = steps_[index];
      if (status_.ok() &&
          (then.loss_bits != now.loss_bits || then.sample_hash != now.sample_hash)) {
        status_ = make_status(
            Code::kCorruption,
            fmt::format("step {} was executed again after a recovery and came out otherwise: "
                        "loss_bits {:08x} of samples {:016x}, before {:08x} of samples {:016x}",
                        report.step, now.loss_bits, now.sample_hash, then.loss_bits,
                        then.sample_hash),
            Scope::kJob);
      }
      return;
    }
    steps_.push_back(now);
    if (new_step_ms_ == 0) {
      new_step_ms_ = std::chrono::duration_cast<std::chrono::milliseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
    }
  }
  if (recorder_ != nullptr) recorder_->on_step(report);
}

void ReplayCheck::on_validation(int64_t step, double loss) {
  {
    const std::lock_guard lock(mutex_);
    if (!validated_.insert(step).second) return;
  }
  if (recorder_ != nullptr) recorder_->on_validation(step, loss);
}

void ReplayCheck::on_checkpoint(int64_t step, const std::string& path,
                                const transport::WriteStats& stats) {
  const bool mirror = !mirror_root_.empty() && path.starts_with(mirror_root_ + "/");
  {
    const std::lock_guard lock(mutex_);
    points_.push_back({step, path});
    if (points_.size() > kMostPoints) points_.erase(points_.begin());
    if (mirror || step <= on_disk_) return;
    on_disk_ = step;
  }
  if (recorder_ != nullptr) recorder_->on_checkpoint(step, path, stats);
}

int64_t ReplayCheck::last_step() const {
  const std::lock_guard lock(mutex_);
  return start_.step + static_cast<int64_t>(steps_.size());
}

int64_t ReplayCheck::at_step() const {
  const std::lock_guard lock(mutex_);
  return at_step_;
}

int64_t ReplayCheck::new_step_ms() const {
  const std::lock_guard lock(mutex_);
  return new_step_ms_;
}

int64_t ReplayCheck::num_replayed() const {
  const std::lock_guard lock(mutex_);
  return num_replayed_;
}

int64_t ReplayCheck::on_disk() const {
  const std::lock_guard lock(mutex_);
  return on_disk_;
}

ReplayCheck::Point ReplayCheck::newest(int64_t last) const {
  const std::lock_guard lock(mutex_);
  std::vector<Point> points = points_;
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.step > b.step; });
  for (const Point& point : points) {
    if (point.step >= last) continue;
    const bool owes = validation_interval_ > 0 && point.step % validation_interval_ == 0 &&
                      !validated_.contains(point.step);
    // Old ones have been removed meanwhile.
    if (!owes && transport::Checkpoint::open(point.path).ok()) return point;
  }
  return start_;
}

void ReplayCheck::begin_attempt(int64_t step) {
  const std::lock_guard lock(mutex_);
  at_step_ = step;
  new_step_ms_ = 0;
}

Status ReplayCheck::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace sgactor::apps
