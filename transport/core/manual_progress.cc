#include "transport/core/manual_progress.h"

#include <algorithm>

namespace sgactor::transport {

void ManualProgress::post_after(int64_t delay_ns, Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.emplace(std::pair(now_ns_ + std::max<int64_t>(delay_ns, 0), num_posted_++),
                 std::move(task));
}

int64_t ManualProgress::now_ns() const {
  const std::lock_guard lock(mutex_);
  return now_ns_;
}

bool ManualProgress::run_one() {
  Task task;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) return false;
    auto first = tasks_.begin();
    now_ns_ = std::max(now_ns_, first->first.first);
    task = std::move(first->second);
    tasks_.erase(first);
  }
  const bool was_inside = std::exchange(inside_, true);
  task();
  inside_ = was_inside;
  return true;
}

int64_t ManualProgress::run_until_idle(int64_t limit) {
  int64_t num_run = 0;
  while (num_run < limit && run_one()) ++num_run;
  return num_run;
}

int64_t ManualProgress::next_due_ns() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() ? -1 : tasks_.begin()->first.first;
}

void ManualProgress::advance_to(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  now_ns_ = std::max(now_ns_, now_ns);
}

}  // namespace sgactor::transport
