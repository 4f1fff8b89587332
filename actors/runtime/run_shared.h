#pragma once
#include "actors/runtime/trace.h"
#include "kernels/backend/backend.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

namespace sgactor::transport {
class FileSystem;
}

namespace sgactor::actors {

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

  /// Fault injection. Set: the next actor that handles a message throws, once.
  std::atomic<bool> throw_in_actor{false};
  /// Files that checkpoint writers use; null: the machine's. Set before the actors are spawned.
  std::shared_ptr<transport::FileSystem> files;
};

}  // namespace sgactor::actors
