#include "supervision/monitor/hang_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace sgactor::supervision {
namespace {

using Name = std::tuple<uint64_t, int64_t, int32_t>;  // key, step, micro-batch

/// All operations that somebody is in, in no order.
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
  for (const RankView& view : views) {
    for (const DoneOperation& d : view.done) {
      const auto it = found.find({d.key, d.step, d.micro_batch});
      if (it != found.end()) it->second.done.push_back(view.rank);
    }
  }
  std::vector<StuckOperation> out;
  for (auto& [name, stuck] : found) {
    std::sort(stuck.waiting.begin(), stuck.waiting.end());
    std::sort(stuck.done.begin(), stuck.done.end());
    std::vector<int32_t> started;
    std::set_union(stuck.waiting.begin(), stuck.waiting.end(), stuck.done.begin(), stuck.done.end(),
                   std::back_inserter(started));
    std::vector<int32_t> members = stuck.operation.members;
    std::sort(members.begin(), members.end());
    std::set_difference(members.begin(), members.end(), started.begin(), started.end(),
                        std::back_inserter(stuck.missing));
    out.push_back(std::move(stuck));
  }
  std::stable_sort(out.begin(), out.end(), [](const StuckOperation& a, const StuckOperation& b) {
    return a.operation.waited_ms > b.operation.waited_ms;
  });
  return out;
}

std::string describe(const StuckOperation& s) {
  const PendingOperation& p = s.operation;
  std::string out = fmt::format("\n  rank {} in {} (", fmt::join(s.waiting, ", "), p.launch);
  if (!p.kind.empty())
    out += fmt::format("{} number {} on channel {}, ", p.kind, p.sequence, p.channel);
  out += fmt::format("lane {}, step {}, micro-batch {}, key {:016x}) for {} ms", p.lane, p.step,
                     p.micro_batch, p.key, p.waited_ms);
  if (!s.missing.empty()) {
    out += fmt::format("; rank {} has not joined", fmt::join(s.missing, ", "));
  } else if (!s.done.empty()) {
    out += fmt::format("; rank {} is done with it", fmt::join(s.done, ", "));
  }
  return out;
}

}  // namespace

HangReport find_hang(const std::vector<RankView>& views) {
  HangReport out;
  std::set<int32_t> waited_for;
  std::set<int32_t> waits;
  for (StuckOperation& s : group(views)) {
    if (s.missing.empty()) {
      out.under_way.push_back(std::move(s));
      continue;
    }
    waited_for.insert(s.missing.begin(), s.missing.end());
    waits.insert(s.waiting.begin(), s.waiting.end());
    out.stuck.push_back(std::move(s));
  }
  for (const RankView& view : views) {
    if (!view.heard) waited_for.insert(view.rank);
    if (out.stuck.empty() && view.at_work && view.pending.empty()) waited_for.insert(view.rank);
  }
  std::set_difference(waited_for.begin(), waited_for.end(), waits.begin(), waits.end(),
                      std::back_inserter(out.culprits));
  return out;
}

std::string to_text(const HangReport& report, const std::vector<RankView>& views) {
  std::string out = "no collective waits for a rank that has not joined it";
  if (!report.culprits.empty()) {
    out = fmt::format("waiting for rank {}", fmt::join(report.culprits, ", "));
  } else if (!report.stuck.empty()) {
    out = "ranks wait for each other";
  }
  for (const StuckOperation& s : report.stuck.empty() ? report.under_way : report.stuck) {
    out += describe(s);
  }
  std::vector<const RankView*> told;
  for (const RankView& view : views) {
    const bool is_culprit = std::find(report.culprits.begin(), report.culprits.end(), view.rank) !=
                            report.culprits.end();
    if (is_culprit || !view.heard) told.push_back(&view);
  }
  std::sort(told.begin(), told.end(),
            [](const RankView* a, const RankView* b) { return a->rank < b->rank; });
  for (const RankView* view : told) {
    if (!view->heard) out += fmt::format("\n  rank {}: its worker does not answer", view->rank);
    if (!view->phase.empty()) out += fmt::format("\n  rank {}: {}", view->rank, view->phase);
    for (const LastMessage& m : view->actors) {
      out += fmt::format("\n  rank {}: {} handled {} of step {} {} ms ago", view->rank, m.actor,
                         m.message, m.step, m.ago_ms);
    }
  }
  return out;
}

}  // namespace sgactor::supervision
