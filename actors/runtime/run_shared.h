#pragma once
#include "actors/runtime/message_trap.h"
#include "actors/runtime/trace.h"
#include "kernels/backend/backend.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
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

  /// What one actor handles; written by that actor only. Whoever reads while the actor is at work
  /// may see fields of two messages.
  struct alignas(64) ActorRecord {
    std::string actor;
    int32_t rank = -1;  ///< -1: works for all ranks of the process
    std::atomic<int64_t> num_messages{0};
    // Of the last one.
    std::atomic<const char*> message{nullptr};  ///< its name, a literal
    std::atomic<int64_t> step{0};
    std::atomic<int32_t> micro_batch{0};
    std::atomic<int64_t> time_ns{0};  ///< steady clock, as coarse as the system's ticks

    void note(const char* name, int64_t at_step, int32_t at_micro_batch) {
      constexpr auto kRelaxed = std::memory_order_relaxed;
      timespec now{};
      ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // a fifth of the exact clock's price
      message.store(name, kRelaxed);
      step.store(at_step, kRelaxed);
      micro_batch.store(at_micro_batch, kRelaxed);
      time_ns.store(int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec, kRelaxed);
      num_messages.store(num_messages.load(kRelaxed) + 1, kRelaxed);
    }
  };
  /// A record for a new actor; lives as long as this.
  ActorRecord& new_record(const std::string& actor, int32_t rank) {
    const std::lock_guard lock(mutex);
    ActorRecord& record = records.emplace_back();
    record.actor = actor;
    record.rank = rank;
    return record;
  }
  [[nodiscard]] int64_t num_messages() {
    const std::lock_guard lock(mutex);
    int64_t n = 0;
    for (const ActorRecord& r : records) n += r.num_messages.load(std::memory_order_relaxed);
    return n;
  }

  /// Where a rank is in its step; written by its worker.
  enum class Phase : uint8_t { kIdle = 0, kComputing, kVoted, kUpdating, kValidating };
  struct RankRecord {
    int32_t rank = 0;
    std::atomic<Phase> phase{Phase::kIdle};
  };
  RankRecord& new_rank(int32_t rank) {
    const std::lock_guard lock(mutex);
    RankRecord& record = ranks.emplace_back();
    record.rank = rank;
    return record;
  }

  std::mutex mutex;
  std::deque<ActorRecord> records;
  std::deque<RankRecord> ranks;
  /// Allocation counters when the first step began.
  std::optional<kernels::AllocationStats> allocations_at_start;

  /// The coordinator waits for ranks to compute (and not for a disk, or for nothing).
  std::atomic<bool> computes{false};

  /// Which executions there have been in this process, also in runs before; null: not counted.
  std::shared_ptr<ExecutionLedger> executions;
  [[nodiscard]] int64_t reexecuted(int32_t rank) const {
    return executions ? executions->reexecuted(rank) : 0;
  }

  /// Fault injection: strikes the actor that handles a message.
  MessageTrap trap;
  /// Fault injection. Set: the next subgraph's actor whose turn comes does not return from it,
  /// until the flag is cleared and its waiters are told.
  std::atomic<bool> stall_in_actor{false};
  std::atomic<bool> stalled{false};  ///< one does so
  /// Files that checkpoint writers use; null: the machine's. Set before the actors are spawned.
  std::shared_ptr<transport::FileSystem> files;
};

}  // namespace sgactor::actors
