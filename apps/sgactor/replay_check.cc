#include "apps/sgactor/replay_check.h"

#include "actors/runtime/update_inputs.h"
#include "transport/storage/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace sgactor::apps {
namespace {

constexpr size_t kMostPoints = 64;

}  // namespace

ReplayCheck::ReplayCheck(actors::TrainingObserver* recorder, Point start, std::string mirror_root,
                         int64_t validation_interval, const graph::Plan* plan)
    : recorder_(recorder),
      start_(std::move(start)),
      mirror_root_(std::move(mirror_root)),
      validation_interval_(validation_interval),
      plan_(plan),
      on_disk_(start_.step),
      at_step_(start_.step) {}

void ReplayCheck::recall(std::vector<Facts> steps, std::set<int64_t> validated,
                         std::vector<Point> points) {
  const std::lock_guard lock(mutex_);
  steps_ = std::move(steps);
  validated_ = std::move(validated);
  points_ = std::move(points);
}

void ReplayCheck::on_step(const actors::StepReport& report) {
  {
    const std::lock_guard lock(mutex_);
    at_step_ = report.step;
    step_times_.push_back(report.step_ms);
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
    if (new_step_ms_ == 0 && report.step > committed_) {
      reexecuted_ = report.reexecuted;
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
    points_.push_back({step, path, step});
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

std::vector<double> ReplayCheck::take_step_times() {
  const std::lock_guard lock(mutex_);
  return std::exchange(step_times_, {});
}

int64_t ReplayCheck::new_step_ms() const {
  const std::lock_guard lock(mutex_);
  return new_step_ms_;
}

int64_t ReplayCheck::num_replayed() const {
  const std::lock_guard lock(mutex_);
  return num_replayed_;
}

bool ReplayCheck::validated(int64_t step) const {
  const std::lock_guard lock(mutex_);
  return validated_.contains(step);
}

int64_t ReplayCheck::on_disk() const {
  const std::lock_guard lock(mutex_);
  return on_disk_;
}

/// Its validation is due and has not been told.
bool ReplayCheck::owes(int64_t step) const {
  return validation_interval_ > 0 && step > start_.step && step % validation_interval_ == 0 &&
         !validated_.contains(step);
}

/// The update inputs of `step` are kept, of all ranks.
bool ReplayCheck::redoable(int64_t step) const {
  return !mirror_root_.empty() && actors::inputs_whole(*plan_, mirror_root_, step);
}

/// Copies of the state that have been told of, and the run's start.
std::vector<ReplayCheck::Point> ReplayCheck::newest_first() const {
  std::vector<Point> points = points_;
  points.insert(points.begin(), start_);
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.step > b.step; });
  return points;
}

/// Old ones have been removed meanwhile.
bool ReplayCheck::is_there(const Point& point) const {
  const bool is_start = point.step == start_.step && point.path == start_.path;
  return is_start || transport::Checkpoint::open(point.path).ok();
}

/// The newest step up to `target` that owes nothing and to which update inputs lead from `step`;
/// -1: none, not even `step` itself.
int64_t ReplayCheck::redo_limit(int64_t step, int64_t target) const {
  int64_t reached = owes(step) ? -1 : step;
  for (int64_t k = step + 1; k <= target; ++k) {
    if (!redoable(k)) break;
    if (!owes(k)) reached = k;
  }
  return reached;
}

ReplayCheck::Point ReplayCheck::newest(int64_t last) const {
  const std::lock_guard lock(mutex_);
  const int64_t reported = start_.step + static_cast<int64_t>(steps_.size());
  const int64_t target = std::min(reported, last - 1);
  Point best{start_.step, start_.path, start_.step};
  // The newest copy of the same reach has the fewest updates to do again.
  for (Point point : newest_first()) {
    if (point.step > target) continue;
    point.redo_to = redo_limit(point.step, target);
    if (point.redo_to <= best.redo_to) continue;
    if (is_there(point)) best = point;
  }
  return best;
}

std::optional<ReplayCheck::Point> ReplayCheck::reaching(int64_t step) const {
  const std::lock_guard lock(mutex_);
  for (Point point : newest_first()) {
    if (point.step > step) continue;
    bool whole = true;
    for (int64_t k = point.step + 1; whole && k <= step; ++k) whole = redoable(k);
    if (!whole) return std::nullopt;  // what is missing here older points need as well
    point.redo_to = step;
    if (is_there(point)) return point;
  }
  return std::nullopt;
}

int64_t ReplayCheck::reexecuted() const {
  const std::lock_guard lock(mutex_);
  return reexecuted_;
}

void ReplayCheck::begin_attempt(int64_t step, int64_t committed) {
  const std::lock_guard lock(mutex_);
  at_step_ = step;
  committed_ = committed;
  reexecuted_ = 0;
  new_step_ms_ = 0;
}

Status ReplayCheck::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace sgactor::apps
