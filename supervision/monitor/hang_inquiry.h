#pragma once
#include "supervision/monitor/hang_report.h"

#include <cstdint>
#include <map>
#include <vector>

namespace sgactor::supervision {

/// A round of questions to all workers that host ranks: what are you waiting for? No clock, no
/// thread.
class HangInquiry {
 public:
  /// `ranks_of`: by the worker's index.
  HangInquiry(std::map<int32_t, std::vector<int32_t>> ranks_of, int64_t now_ms)
      : asked_(std::move(ranks_of)), begun_ms_(now_ms) {}

  /// A second answer of a worker, and one that nobody was asked for, change nothing.
  void answer(int32_t worker, std::vector<RankView> views);
  /// All but `silent` have answered.
  [[nodiscard]] bool complete(const std::vector<int32_t>& silent) const;
  /// One a rank that was asked about, ascending; those without an answer are not heard.
  [[nodiscard]] std::vector<RankView> views() const;
  [[nodiscard]] int64_t begun_ms() const { return begun_ms_; }

 private:
  std::map<int32_t, std::vector<int32_t>> asked_;
  std::map<int32_t, std::vector<RankView>> answers_;
  int64_t begun_ms_;
};

}  // namespace sgactor::supervision
