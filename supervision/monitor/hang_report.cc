#include "supervision/monitor/hang_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace sgactor::supervision {
namespace {

using Name = std::tuple<uint64_t, int64_t, int32_t>;  // key, step, micro-batch

std::vector<StuckOperation> group(const std::vector<RankView>& views) {
  std::map<Name, StuckOperation> found;
  for (const RankView& view : views) {
    for (const PendingOperation& p : view.pending) {
      StuckOperation& stuck = found[{p.key, p.step, p.micro_batch}];
      const bool longer = stuck.waiting.empty() || p.waited_ms > stuck.operation.waited_ms;
      if (longer) stuck.operation = p;
      stuck.waiting.push_back(view.rank);
    }
  }
  std::vector<StuckOperation> out;
  for (auto& [name, stuck] : found) {
    std::sort(stuck.waiting.begin(), stuck.waiting.end());
    std::vector<int32_t> members = stuck.operation.members;
    std::sort(members.begin(), members.end());
    std::set_difference(members.begin(), members.end(), stuck.waiting.begin(), stuck.waiting.end(),
                        std::back_inserter(stuck.missing));
    if (!stuck.missing.empty()) out.push_back(std::move(stuck));
  }
  return out;
}

}  // namespace

HangReport find_hang(const std::vector<RankView>& views) {
  HangReport out;
  out.stuck = group(views);
  std::stable_sort(out.stuck.begin(), out.stuck.end(),
                   [](const StuckOperation& a, const StuckOperation& b) {
                     return a.operation.waited_ms > b.operation.waited_ms;
                   });
  std::set<int32_t> waited_for;
  std::set<int32_t> waits;
  for (const StuckOperation& stuck : out.stuck) {
    waited_for.insert(stuck.missing.begin(), stuck.missing.end());
    waits.insert(stuck.waiting.begin(), stuck.waiting.end());
  }
  std::set_difference(waited_for.begin(), waited_for.end(), waits.begin(), waits.end(),
                      std::back_inserter(out.culprits));
  return out;
}

std::string to_text(const HangReport& report, const std::vector<RankView>& views) {
  if (report.stuck.empty()) return "no collective waits for a rank that has not joined it";
  std::string out = report.culprits.empty()
                        ? "ranks wait for each other"
                        : fmt::format("waiting for rank {}", fmt::join(report.culprits, ", "));
  for (const StuckOperation& s : report.stuck) {
    const PendingOperation& p = s.operation;
    out += fmt::format(
        "\n  rank {} in {} (lane {}, step {}, micro-batch {}, key {:016x}) for {} ms; rank {} has "
        "not joined",
        fmt::join(s.waiting, ", "), p.launch, p.lane, p.step, p.micro_batch, p.key, p.waited_ms,
        fmt::join(s.missing, ", "));
  }
  for (const RankView& view : views) {
    if (std::find(report.culprits.begin(), report.culprits.end(), view.rank) ==
        report.culprits.end()) {
      continue;
    }
    if (!view.heard) out += fmt::format("\n  rank {}: its worker does not answer", view.rank);
    for (const LastMessage& m : view.actors) {
      out += fmt::format("\n  rank {}: {} handled {} of step {} {} ms ago", view.rank, m.actor,
                         m.message, m.step, m.ago_ms);
    }
  }
  return out;
}

}  // namespace sgactor::supervision
