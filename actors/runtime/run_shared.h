#pragma once
#include "actors/runtime/trace.h"
#include "kernels/backend/backend.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace sgactor::transport {
class FileSystem;
}

namespace sgactor::actors {

/// Counts launches of the compute lane that a process executes although it has executed the same
/// (rank, step, micro-batch, launch) before. Thread-safe.
class ExecutionLedger {
 public:
  void note(int32_t rank, int32_t launch, int32_t micro_batch, int64_t step) {
    const std::lock_guard lock(mutex_);
    PerRank& r = ranks_[rank];
    // Steps of one launch only rise but for those that come again.
    int64_t& last = r.last[{launch, micro_batch}];
    if (step <= last) ++r.reexecuted;
    last = std::max(last, step);
  }
  [[nodiscard]] int64_t reexecuted(int32_t rank) const {
    const std::lock_guard lock(mutex_);
    const auto it = ranks_.find(rank);
    return it == ranks_.end() ? 0 : it->second.reexecuted;
  }

 private:
  struct PerRank {
    std::map<std::pair<int32_t, int32_t>, int64_t> last;
    int64_t reexecuted = 0;
  };
  mutable std::mutex mutex_;
  std::map<int32_t, PerRank> ranks_;
};

/// What the actors of a run share beside their messages: counters and the trace. Outlives them.
struct RunShared {
  Tracer tracer;

  /// Messages handled by one actor; written by that actor only.
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
    void add() {
      value.store(value.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  };
  /// A counter for a new actor; lives as long as this.
  Counter& new_counter() {
    const std::lock_guard lock(mutex);
    return counters.emplace_back();
  }
  [[nodiscard]] int64_t num_messages() {
    const std::lock_guard lock(mutex);
    int64_t n = 0;
    for (const Counter& c : counters) n += c.value.load(std::memory_order_relaxed);
    return n;
  }

  std::mutex mutex;
  std::deque<Counter> counters;
  /// Allocation counters when the first step began.
  std::optional<kernels::AllocationStats> allocations_at_start;

  /// Which executions there have been in this process, also in runs before; null: not counted.
  std::shared_ptr<ExecutionLedger> executions;
  [[nodiscard]] int64_t reexecuted(int32_t rank) const {
    return executions ? executions->reexecuted(rank) : 0;
  }

  /// Fault injection. Set: the next actor that handles a message throws, once.
  std::atomic<bool> throw_in_actor{false};
  /// Files that checkpoint writers use; null: the machine's. Set before the actors are spawned.
  std::shared_ptr<transport::FileSystem> files;
};

}  // namespace sgactor::actors
