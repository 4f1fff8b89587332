#pragma once
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace sgactor::actors {

/// The operations that a channel has started and whose sinks have not heard yet: how many, the
/// first failure, and the drain that waits for the last of them. Thread-safe.
class OpenOperations {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    ++num_open_;
  }
  /// One has ended with `status`, and its sink has heard. If it was the last before a drain,
  /// `tell(first, token, sink)` is called for that, without the lock; `first` is the first failure.
  template <class Tell>
  void close(const Status& status, const Tell& tell) {
    std::optional<Drain> drained;
    Status first;
    {
      const std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = status;
      first = failure_;
      if (--num_open_ == 0) drained = std::exchange(drain_, std::nullopt);
      ++num_telling_;  // wait() must not return while a sink is used
    }
    if (drained) tell(first, drained->token, *drained->sink);
    const std::lock_guard lock(mutex_);
    --num_telling_;
    if (num_open_ == 0 && num_telling_ == 0) idle_.notify_all();
  }
  void close(const Status& status) { close(status, tell_sink); }
  /// Calls `tell` as close() does, at once or when the last open one is closed. One at a time.
  template <class Tell>
  void drain(uint64_t token, kernels::CompletionSink& sink, const Tell& tell) {
    Status first;
    {
      const std::lock_guard lock(mutex_);
      if (num_open_ > 0) {
        drain_ = Drain{token, &sink};
        return;
      }
      first = failure_;
    }
    tell(first, token, sink);
  }
  void drain(uint64_t token, kernels::CompletionSink& sink) { drain(token, sink, tell_sink); }

  [[nodiscard]] bool idle() {
    const std::lock_guard lock(mutex_);
    return num_open_ == 0 && num_telling_ == 0;
  }
  /// Blocks until idle.
  void wait() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return num_open_ == 0 && num_telling_ == 0; });
  }

 private:
  struct Drain {
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
  };
  static void tell_sink(const Status& first, uint64_t token, kernels::CompletionSink& sink) {
    sink.on_complete(token, first, {});
  }

  std::mutex mutex_;
  std::condition_variable idle_;
  int64_t num_open_ = 0;
  int64_t num_telling_ = 0;
  Status failure_;
  std::optional<Drain> drain_;
};

}  // namespace sgactor::actors
