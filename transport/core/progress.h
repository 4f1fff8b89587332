#pragma once
#include <cstdint>
#include <functional>

namespace sgactor::transport {

/// One thread (or, in a simulation, one queue) on which everything of a fabric happens: frames,
/// completions, collectives, timers. Tasks run one at a time in the order of their posting.
class Progress {
 public:
  using Task = std::function<void()>;
  virtual ~Progress() = default;
  /// Any thread. Tasks posted after the stop are dropped.
  virtual void post(Task task) = 0;
  /// Any thread. Runs `task` once `delay_ns` have passed; equal times run in posting order.
  virtual void post_after(int64_t delay_ns, Task task) = 0;
  /// Steady nanoseconds; virtual in a simulation.
  [[nodiscard]] virtual int64_t now_ns() const = 0;
  /// Whether the caller runs inside a task of this object.
  [[nodiscard]] virtual bool inside() const = 0;
};

}  // namespace sgactor::transport
