#include "supervision/recovery/replay_log.h"

#include <fmt/format.h>

namespace sgactor::supervision {

Result<bool> ReplayLog::post(const LogicalKey& key, Retain retain, const Payload& payload,
                             int64_t now_us) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) return false;
  const int64_t kept = retain == Retain::kRegather ? 0 : payload.bytes;
  if (bytes_ + kept > budget_bytes_) {
    return make_status(Code::kOutOfMemory,
                       fmt::format("replay log of rank {}: {} + {} bytes exceed the plan's {}",
                                   key.from, bytes_, kept, budget_bytes_),
                       Scope::kRank);
  }
  Entry entry;
  entry.retain = retain;
  if (retain != Retain::kRegather) entry.payload = payload;
  entry.due_us = now_us + resend_.first_us;
  entry.interval_us = resend_.first_us * 2;
  next_due_us_ = std::min(next_due_us_, entry.due_us);
  entries_.emplace(key, entry);
  bytes_ += kept;
  high_water_bytes_ = std::max(high_water_bytes_, bytes_);
  return true;
}

void ReplayLog::on_ack(const LogicalKey& key) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) it->second.acked = true;
}

void ReplayLog::wake(Entry& entry, int64_t now_us) {
  entry.due_us = now_us;
  entry.interval_us = resend_.first_us;
  next_due_us_ = std::min(next_due_us_, now_us);
}

void ReplayLog::unack(RankId rank, int64_t now_us) {
  for (auto& [key, entry] : entries_) {
    if (key.to != rank) continue;
    entry.acked = false;
    wake(entry, now_us);
  }
}

void ReplayLog::hurry(int64_t now_us) {
  for (auto& [key, entry] : entries_) {
    if (!entry.acked) wake(entry, now_us);
  }
}

void ReplayLog::commit(int64_t step) {
  while (!entries_.empty() && entries_.begin()->first.step <= step) drop(entries_.begin()->first);
}

void ReplayLog::drop(const LogicalKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  bytes_ -= it->second.payload.bytes;
  entries_.erase(it);
}

size_t ReplayLog::num_unacked() const {
  size_t n = 0;
  for (const auto& [key, entry] : entries_) n += entry.acked ? 0 : 1;
  return n;
}

}  // namespace sgactor::supervision
