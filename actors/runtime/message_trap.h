#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

namespace sgactor::actors {

/// Fault injection: strikes at certain messages of certain steps. Thread-safe; while nothing is
/// armed a message costs one relaxed load.
class MessageTrap {
 public:
  enum class Action : uint8_t {
    kThrow = 0,  ///< an exception leaves the handler
    kStall,      ///< the next subgraph's actor whose turn comes does not return
    kKill,       ///< SIGKILL of this process
    kStop,       ///< SIGSTOP of this process
  };

  /// At the next message.
  void arm(Action action) { arm(action, std::numeric_limits<int64_t>::min(), 1); }
  /// At the `message`-th message (from 1) of `step` that actors of this process handle, in whatever
  /// order they do. Where the step has fewer, or the order came late: at the first message of two
  /// steps later, since feeders handle messages of the next step while one is open. Whatever else
  /// is armed stays.
  void arm(Action action, int64_t step, int64_t message) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({action, step, message});
    armed_.store(true);
  }
  /// Call for each message. The action, once, if it is this one's turn.
  std::optional<Action> take(int64_t step) {
    if (!armed_.load(std::memory_order_relaxed)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    std::optional<Action> out;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const bool counted = step == it->step && --it->left <= 0;
      const bool due = counted || step > it->step + 1;
      if (!due || out) {
        ++it;
        continue;
      }
      out = it->action;
      it = waiting_.erase(it);
    }
    armed_.store(!waiting_.empty());
    return out;
  }

 private:
  struct Waiting {
    Action action = Action::kThrow;
    int64_t step = 0;
    int64_t left = 0;  ///< messages of the step, this one among them
  };
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  std::vector<Waiting> waiting_;
};

}  // namespace sgactor::actors
