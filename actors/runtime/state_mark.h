#pragma once
#include "actors/protocol/messages.h"

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace sgactor::actors {

/// Of which step the state in a rank's memory is. The rank's worker says so, others wait for it.
/// Thread-safe.
class StateMark {
 public:
  /// Gets what the step has given; of the step that a rank has begun behind only its number.
  using Then = std::function<void(const StepDone&)>;

  /// The memory holds the state after `step`, which was not done here.
  explicit StateMark(int32_t rank, int64_t step) {
    done_.rank = rank;
    done_.step = step;
  }
  /// An update begins: the memory holds the state of no step until reach().
  void leave() {
    const std::lock_guard lock(mutex_);
    whole_ = false;
  }
  /// The update of `done.step` is complete.
  void reach(const StepDone& done) {
    std::vector<std::pair<int64_t, Then>> due;
    {
      const std::lock_guard lock(mutex_);
      whole_ = true;
      done_ = done;
      // Whoever waits for an older step waits for what is gone.
      std::erase_if(waiting_, [&](auto& w) {
        if (w.first == done.step) due.push_back(std::move(w));
        return w.first <= done.step;
      });
    }
    for (const auto& [step, then] : due) then(done);
  }
  /// Calls `then` when the memory holds the state after `step`: at once and here, or on the
  /// worker's thread, which it must not hold up. Not at all if that state never comes.
  void when(int64_t step, Then then) {
    StepDone done;
    {
      const std::lock_guard lock(mutex_);
      if (!whole_ || done_.step != step) {
        if (!whole_ || done_.step < step) waiting_.emplace_back(step, std::move(then));
        return;
      }
      done = done_;
    }
    then(done);
  }
  /// -1: an update is under way.
  [[nodiscard]] int64_t step() const {
    const std::lock_guard lock(mutex_);
    return whole_ ? done_.step : -1;
  }

 private:
  mutable std::mutex mutex_;
  bool whole_ = true;
  StepDone done_;
  std::vector<std::pair<int64_t, Then>> waiting_;
};

}  // namespace sgactor::actors
