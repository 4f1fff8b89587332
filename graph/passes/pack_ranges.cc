#include "graph/base/units.h"
#include "graph/passes/plan_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sgactor::graph {
namespace {

struct Placed {
  int64_t begin = 0;
  int64_t end = 0;
  const LiveRange* range = nullptr;
};

bool live_together(const LiveRange& a, const LiveRange& b) {
  if (a.last < b.first || b.last < a.first) return false;
  if (a.parts.empty() && b.parts.empty()) return true;
  const std::pair<int32_t, int32_t> whole_a(a.first, a.last);
  const std::pair<int32_t, int32_t> whole_b(b.first, b.last);
  const std::span in_a = a.parts.empty() ? std::span(&whole_a, 1) : std::span(a.parts);
  const std::span in_b = b.parts.empty() ? std::span(&whole_b, 1) : std::span(b.parts);
  size_t i = 0;
  size_t k = 0;
  while (i < in_a.size() && k < in_b.size()) {
    if (in_a[i].second < in_b[k].first) {
      ++i;
    } else if (in_b[k].second < in_a[i].first) {
      ++k;
    } else {
      return true;
    }
  }
  return false;
}

/// Start of the smallest gap that holds `bytes` between the placed ranges that live when `range`
/// does; behind them all if none does.
int64_t best_fit(const std::vector<Placed>& placed, const LiveRange& range, int64_t bytes) {
  int64_t free_from = 0;
  int64_t best = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  for (const Placed& p : placed) {  // by begin
    if (!live_together(*p.range, range)) continue;
    const int64_t gap = p.begin - free_from;
    if (gap >= bytes && gap < best_gap) {
      best = free_from;
      best_gap = gap;
    }
    free_from = std::max(free_from, p.end);
  }
  return best >= 0 ? best : free_from;
}

Packing pack_in_order(std::span<const LiveRange> ranges, const std::vector<size_t>& order,
                      int64_t align_bytes) {
  Packing packing;
  packing.offsets.assign(ranges.size(), 0);
  std::vector<Placed> placed;
  placed.reserve(ranges.size());
  for (size_t i : order) {
    const LiveRange& range = ranges[i];
    if (range.bytes == 0) continue;
    const int64_t bytes = round_up(range.bytes, align_bytes);
    const int64_t begin = best_fit(placed, range, bytes);
    packing.offsets[i] = begin;
    packing.total_bytes = std::max(packing.total_bytes, begin + bytes);
    const auto at = std::upper_bound(placed.begin(), placed.end(), begin,
                                     [](int64_t b, const Placed& p) { return b < p.begin; });
    placed.insert(at, {begin, begin + bytes, &range});
  }
  return packing;
}

double length(const LiveRange& r) { return static_cast<double>(r.last) - r.first + 1; }
double area(const LiveRange& r) { return static_cast<double>(r.bytes) * length(r); }

template <class Key>
std::vector<size_t> largest_first(std::span<const LiveRange> ranges, Key key) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return key(ranges[a]) > key(ranges[b]); });
  return order;
}

std::vector<size_t> by_size(std::span<const LiveRange> ranges) {
  return largest_first(ranges, [](const LiveRange& r) { return r.bytes; });
}

}  // namespace

Packing pack_by_size(std::span<const LiveRange> ranges, int64_t align_bytes) {
  return pack_in_order(ranges, by_size(ranges), align_bytes);
}

Packing pack_ranges(std::span<const LiveRange> ranges, int64_t align_bytes) {
  const int64_t bound = live_lower_bound(ranges, align_bytes);
  Packing best = pack_by_size(ranges, align_bytes);
  if (best.total_bytes > bound) {
    Packing other = pack_in_order(ranges, largest_first(ranges, length), align_bytes);
    if (other.total_bytes < best.total_bytes) best = std::move(other);
  }
  if (best.total_bytes > bound) {
    Packing other = pack_in_order(ranges, largest_first(ranges, area), align_bytes);
    if (other.total_bytes < best.total_bytes) best = std::move(other);
  }
  return best;
}

int64_t live_lower_bound(std::span<const LiveRange> ranges, int64_t align_bytes) {
  struct Change {
    int64_t position = 0;
    int64_t bytes = 0;
  };
  std::vector<Change> changes;
  changes.reserve(2 * ranges.size());
  for (const LiveRange& r : ranges) {
    const int64_t bytes = round_up(r.bytes, align_bytes);
    const auto add = [&](int32_t first, int32_t last) {
      changes.push_back({first, bytes});
      changes.push_back({static_cast<int64_t>(last) + 1, -bytes});
    };
    if (r.parts.empty()) add(r.first, r.last);
    for (const auto& [first, last] : r.parts) add(first, last);
  }
  // Ends before starts at one position.
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.position != b.position ? a.position < b.position : a.bytes < b.bytes;
  });
  int64_t live = 0;
  int64_t most = 0;
  for (const Change& c : changes) {
    live += c.bytes;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace sgactor::graph
