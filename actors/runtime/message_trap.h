#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

namespace sgactor::actors {

/// Fault injection: strikes at a certain message of a certain step. Thread-safe; while nothing is
/// armed a message costs one relaxed load.
class MessageTrap {
 public:
  enum class Action : uint8_t {
    kThrow = 0,  ///< an exception leaves the handler
    kStall,      ///< the next subgraph's actor whose turn comes does not return
    kKill,       ///< SIGKILL of this process
    kStop,       ///< SIGSTOP of this process
  };

  /// At the `message`-th message (from 1) of `step` that actors of this process handle, in whatever
  /// order they do. Where the step has fewer, or the order came late: at the first message of two
  /// steps later, since feeders handle messages of the next step while one is open. Takes the place
  /// of what was armed before.
  void arm(Action action, int64_t step, int64_t message) {
    const std::lock_guard lock(mutex_);
    action_ = action;
    step_ = step;
    left_ = message;
    armed_.store(true);
  }
  /// Call for each message. The action, once, if it is this one's turn.
  std::optional<Action> take(int64_t step) {
    if (!armed_.load(std::memory_order_relaxed)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (!armed_.load() || step < step_ || step == step_ + 1) return std::nullopt;
    if (step == step_ && --left_ > 0) return std::nullopt;
    armed_.store(false);
    return action_;
  }

 private:
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  Action action_ = Action::kThrow;
  int64_t step_ = 0;
  int64_t left_ = 0;
};

}  // namespace sgactor::actors
