#pragma once
#include "transport/storage/state_source.h"

#include <chrono>
#include <mutex>

namespace sgactor::apps {

/// Hands everything to another source and notes when that was first asked and when it answered
/// last: before, a run compiles and allocates; after, it steps. Borrows the source.
class TimedState final : public transport::StateSource {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TimedState(const transport::StateSource& source) : source_(source) {}

  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    note(asked_, false);
    Status s = source_.load(name, type, out);
    note(answered_, true);
    return s;
  }
  [[nodiscard]] bool is_zero(const std::string& name) const override {
    note(asked_, false);
    const bool zero = source_.is_zero(name);
    note(answered_, true);
    return zero;
  }
  [[nodiscard]] std::optional<NormalNumbers> numbers(const std::string& name,
                                                     const TensorType& type) const override {
    note(asked_, false);
    auto rule = source_.numbers(name, type);
    note(answered_, true);
    return rule;
  }
  /// Of the first and the last call; time_point{} without any.
  [[nodiscard]] Clock::time_point asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  [[nodiscard]] Clock::time_point answered() const {
    const std::lock_guard lock(mutex_);
    return answered_;
  }

 private:
  void note(Clock::time_point& when, bool again) const {
    const std::lock_guard lock(mutex_);
    if (again || when == Clock::time_point{}) when = Clock::now();
  }

  const transport::StateSource& source_;
  mutable std::mutex mutex_;
  mutable Clock::time_point asked_;
  mutable Clock::time_point answered_;
};

}  // namespace sgactor::apps
