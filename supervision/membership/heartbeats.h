#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace sgactor::supervision {

struct HeartbeatPolicy {
  int64_t interval_us = 100'000;
  int32_t missed = 3;  ///< silent for this many intervals: suspected
};

/// Who has been heard when. Times are microseconds of any one clock. Pure.
class Heartbeats {
 public:
  explicit Heartbeats(HeartbeatPolicy policy = {}) : policy_(policy) {}

  /// Starts the count for `id`, as if it had just been heard. Again: no change.
  void watch(int32_t id, int64_t now_us) { last_.try_emplace(id, Entry{now_us, -1}); }
  void forget(int32_t id) { last_.erase(id); }
  /// False if `id` is not watched or `sequence` is not newer than the last one heard of it (a
  /// message overtaken by a later one says nothing about now).
  bool heard(int32_t id, int64_t sequence, int64_t now_us) {
    const auto it = last_.find(id);
    if (it == last_.end() || sequence <= it->second.sequence) return false;
    it->second = Entry{now_us, sequence};
    return true;
  }
  /// Ids silent for longer than allowed, ascending.
  [[nodiscard]] std::vector<int32_t> suspects(int64_t now_us) const {
    std::vector<int32_t> out;
    for (const auto& [id, entry] : last_) {
      if (now_us - entry.last_us > policy_.interval_us * policy_.missed) out.push_back(id);
    }
    return out;
  }

 private:
  struct Entry {
    int64_t last_us;
    int64_t sequence;
  };
  HeartbeatPolicy policy_;
  std::map<int32_t, Entry> last_;
};

}  // namespace sgactor::supervision
