#pragma once
#include "transport/core/progress.h"

#include <map>
#include <mutex>
#include <utility>

namespace sgactor::transport {

/// Progress without a thread, in virtual time: for simulations and tests. run_until_idle() is
/// called by one thread; posting is thread-safe.
class ManualProgress final : public Progress {
 public:
  void post(Task task) override { post_after(0, std::move(task)); }
  void post_after(int64_t delay_ns, Task task) override;
  [[nodiscard]] int64_t now_ns() const override;
  [[nodiscard]] bool inside() const override { return inside_; }

  /// Runs the next task, moving the time forward to it. False if there is none.
  bool run_one();
  /// Runs tasks until none is left, at most `limit`; returns how many ran.
  int64_t run_until_idle(int64_t limit = INT64_MAX);
  /// When the next task is due; -1 if there is none.
  [[nodiscard]] int64_t next_due_ns() const;
  /// Moves the time forward, never back.
  void advance_to(int64_t now_ns);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, uint64_t>, Task> tasks_;  // by time, then order of posting
  uint64_t num_posted_ = 0;
  int64_t now_ns_ = 0;
  bool inside_ = false;
};

}  // namespace sgactor::transport
