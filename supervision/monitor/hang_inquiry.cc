#include "supervision/monitor/hang_inquiry.h"

#include <algorithm>
#include <utility>

namespace sgactor::supervision {

void HangInquiry::answer(int32_t worker, std::vector<RankView> views) {
  if (asked_.contains(worker)) answers_.try_emplace(worker, std::move(views));
}

bool HangInquiry::complete(const std::vector<int32_t>& silent) const {
  return std::all_of(asked_.begin(), asked_.end(), [&](const auto& a) {
    return answers_.contains(a.first) ||
           std::find(silent.begin(), silent.end(), a.first) != silent.end();
  });
}

std::vector<RankView> HangInquiry::views() const {
  std::vector<RankView> out;
  for (const auto& [worker, ranks] : asked_) {
    const auto answer = answers_.find(worker);
    for (const int32_t rank : ranks) {
      RankView view;
      view.rank = rank;
      view.heard = false;
      if (answer != answers_.end()) {
        const auto of_rank =
            std::find_if(answer->second.begin(), answer->second.end(),
                         [rank = rank](const RankView& v) { return v.rank == rank; });
        if (of_rank != answer->second.end()) view = *of_rank;
      }
      out.push_back(std::move(view));
    }
  }
  std::sort(out.begin(), out.end(),
            [](const RankView& a, const RankView& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace sgactor::supervision
