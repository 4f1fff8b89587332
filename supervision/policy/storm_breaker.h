#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace sgactor::supervision {

struct StormPolicy {
  int64_t window_us = 60'000'000;
  int32_t max_faults = 20;          ///< in the window, of all: more stop the job
  int32_t max_faults_of_place = 3;  ///< in the window, of one device: more quarantine it
};

/// Stops recovery from going round in circles. Times are microseconds of any one clock. Pure.
class StormBreaker {
 public:
  explicit StormBreaker(StormPolicy policy = {}) : policy_(policy) {}

  enum class Verdict : uint8_t {
    kGoOn = 0,
    kQuarantinePlace,  ///< it fails again and again: no worker starts there any more
    kStopJob,          ///< whatever fails, it is not one place
  };
  /// Counts a fault at `place` (any number that names a device for the life of the job).
  Verdict on_fault(int64_t place, int64_t now_us) {
    expire(all_, now_us);
    all_.push_back(now_us);
    std::deque<int64_t>& own = places_[place];
    expire(own, now_us);
    own.push_back(now_us);
    if (static_cast<int32_t>(all_.size()) > policy_.max_faults) return Verdict::kStopJob;
    if (static_cast<int32_t>(own.size()) > policy_.max_faults_of_place) {
      return Verdict::kQuarantinePlace;
    }
    return Verdict::kGoOn;
  }
  [[nodiscard]] int32_t num_recent() const { return static_cast<int32_t>(all_.size()); }

 private:
  void expire(std::deque<int64_t>& times, int64_t now_us) const {
    while (!times.empty() && now_us - times.front() >= policy_.window_us) times.pop_front();
  }
  StormPolicy policy_;
  std::deque<int64_t> all_;
  std::map<int64_t, std::deque<int64_t>> places_;
};

}  // namespace sgactor::supervision
