#pragma once
#include "graph/base/status.h"
#include "supervision/recovery/messages.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace sgactor::supervision {

/// What one rank has sent in the open step. Kept until COMMIT, acknowledged or not: an
/// acknowledgement only stops the re-sending, since the one that gave it may die. Budgeted by the
/// plan. Pure.
class ReplayLog {
 public:
  ReplayLog(int64_t budget_bytes, ResendPolicy resend)
      : budget_bytes_(budget_bytes), resend_(resend) {}

  /// Keeps a message; true if it is new (send it now), false if its key is known (nothing changes).
  /// kRegather entries keep no bytes. Errors: kOutOfMemory if the plan's budget is exceeded; the
  /// log is unchanged.
  Result<bool> post(const LogicalKey& key, Retain retain, const Payload& payload, int64_t now_us);
  void on_ack(const LogicalKey& key);
  /// `rank` has a new life: nothing that was sent to it has been received.
  void unack(RankId rank, int64_t now_us);
  /// All that is not acknowledged is due now: receivers drop what carries an old generation.
  void hurry(int64_t now_us);
  /// COMMIT(step): drops all of `step` and earlier.
  void commit(int64_t step);
  /// Drops one entry. Only for the check that this is noticed.
  void drop(const LogicalKey& key);

  struct Due {
    LogicalKey key;
    Retain retain;
    Payload payload;
  };
  /// Calls `send(Due)` for what is due, in key order, and puts off its next turn.
  template <class F>
  void take_due(int64_t now_us, F&& send) {
    if (now_us < next_due_us_) return;
    next_due_us_ = kNever;
    for (auto& [key, entry] : entries_) {
      if (entry.acked) continue;
      if (entry.due_us <= now_us) {
        send(Due{key, entry.retain, entry.payload});
        entry.due_us = now_us + entry.interval_us;
        entry.interval_us = std::min(entry.interval_us * 2, resend_.longest_us);
      }
      next_due_us_ = std::min(next_due_us_, entry.due_us);
    }
  }
  [[nodiscard]] int64_t next_due_us() const { return next_due_us_; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] int64_t high_water_bytes() const { return high_water_bytes_; }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] size_t num_unacked() const;

  static constexpr int64_t kNever = INT64_MAX;

 private:
  struct Entry {
    Retain retain;
    Payload payload;
    bool acked = false;
    int64_t due_us = 0;
    int64_t interval_us = 0;
  };
  void wake(Entry& entry, int64_t now_us);

  std::map<LogicalKey, Entry> entries_;
  int64_t budget_bytes_;
  ResendPolicy resend_;
  int64_t bytes_ = 0;
  int64_t high_water_bytes_ = 0;
  int64_t next_due_us_ = kNever;
};

}  // namespace sgactor::supervision
