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

/// Start of the smallest gap (first_fit: of the lowest) that holds `bytes` between the placed
/// ranges that live when `range` does; behind them all if none does.
int64_t find_gap(const std::vector<Placed>& placed, const LiveRange& range, int64_t bytes,
                 bool first_fit) {
  int64_t free_from = 0;
  int64_t best = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  for (const Placed& p : placed) {  // by begin
    if (!live_together(*p.range, range)) continue;
    const int64_t gap = p.begin - free_from;
    if (gap >= bytes && gap < best_gap) {
      best = free_from;
      best_gap = gap;
      if (first_fit) break;
    }
    free_from = std::max(free_from, p.end);
  }
  return best >= 0 ? best : free_from;
}

Packing pack_in_order(std::span<const LiveRange> ranges, const std::vector<size_t>& order,
                      int64_t align_bytes, bool first_fit = false) {
  Packing packing;
  packing.offsets.assign(ranges.size(), 0);
  std::vector<Placed> placed;
  placed.reserve(ranges.size());
  for (size_t i : order) {
    const LiveRange& range = ranges[i];
    if (range.bytes == 0) continue;
    const int64_t bytes = round_up(range.bytes, align_bytes);
    const int64_t begin = find_gap(placed, range, bytes, first_fit);
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

constexpr size_t kMostExact = 10;
constexpr int64_t kMostExactNodes = 200'000;

/// Depth first over the orders in which ranges can lie from the bottom up: in the order of its
/// offsets every packing can be laid down again, each range on top of those below it that live with
/// it, without growing. So one of these orders is as small as any packing.
class ExactPacker {
 public:
  ExactPacker(std::span<const LiveRange> ranges, int64_t align_bytes)
      : ranges_(ranges), bound_(live_lower_bound(ranges, align_bytes)) {
    for (const LiveRange& r : ranges) bytes_.push_back(round_up(r.bytes, align_bytes));
  }

  std::optional<Packing> run() {
    if (std::count_if(bytes_.begin(), bytes_.end(), [](int64_t b) { return b > 0; }) >
        static_cast<int64_t>(kMostExact)) {
      return std::nullopt;
    }
    best_.total_bytes = std::numeric_limits<int64_t>::max();
    offsets_.assign(ranges_.size(), 0);
    used_.assign(ranges_.size(), false);
    for (size_t i = 0; i < bytes_.size(); ++i) used_[i] = bytes_[i] == 0;
    place(0, 0);
    if (nodes_ > kMostExactNodes) return std::nullopt;
    return best_;
  }

 private:
  [[nodiscard]] int64_t floor_of(size_t i) const {
    int64_t floor = 0;
    for (size_t below : order_) {
      if (live_together(ranges_[below], ranges_[i]))
        floor = std::max(floor, offsets_[below] + bytes_[below]);
    }
    return floor;
  }
  void place(int64_t lowest, int64_t total) {
    if (++nodes_ > kMostExactNodes || best_.total_bytes == bound_) return;
    bool whole = true;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (used_[i]) continue;
      whole = false;
      offsets_[i] = floor_of(i);
      const int64_t end = std::max(total, offsets_[i] + bytes_[i]);
      // What would lie lower than its predecessor comes in another order.
      if (offsets_[i] < lowest || end >= best_.total_bytes) continue;
      used_[i] = true;
      order_.push_back(i);
      const int64_t offset = offsets_[i];
      place(offset, end);
      offsets_[i] = offset;
      order_.pop_back();
      used_[i] = false;
    }
    if (!whole || total >= best_.total_bytes) return;
    best_ = {offsets_, total};
  }

  std::span<const LiveRange> ranges_;
  int64_t bound_;
  std::vector<int64_t> bytes_;
  std::vector<int64_t> offsets_;
  std::vector<size_t> order_;
  std::vector<bool> used_;
  int64_t nodes_ = 0;
  Packing best_;
};

/// In the order in which they are tried.
struct Packer {
  const char* name;
  std::optional<Packing> (*run)(std::span<const LiveRange> ranges, int64_t align_bytes);
};
constexpr Packer kPackers[] = {
    {"greedy by size",
     [](std::span<const LiveRange> r, int64_t a) -> std::optional<Packing> {
       return pack_by_size(r, a);
     }},
    {"longest first",
     [](std::span<const LiveRange> r, int64_t a) -> std::optional<Packing> {
       return pack_in_order(r, largest_first(r, length), a);
     }},
    {"largest size times length first",
     [](std::span<const LiveRange> r, int64_t a) -> std::optional<Packing> {
       return pack_in_order(r, largest_first(r, area), a);
     }},
    {"first fit by time",
     [](std::span<const LiveRange> r, int64_t a) -> std::optional<Packing> {
       return pack_first_fit(r, a);
     }},
    {"exact", pack_exact},
};

}  // namespace

Packing pack_by_size(std::span<const LiveRange> ranges, int64_t align_bytes) {
  return pack_in_order(ranges, by_size(ranges), align_bytes);
}

Packing pack_first_fit(std::span<const LiveRange> ranges, int64_t align_bytes) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return ranges[a].first != ranges[b].first ? ranges[a].first < ranges[b].first
                                              : ranges[a].bytes > ranges[b].bytes;
  });
  return pack_in_order(ranges, order, align_bytes, /*first_fit=*/true);
}

std::optional<Packing> pack_exact(std::span<const LiveRange> ranges, int64_t align_bytes) {
  return ExactPacker(ranges, align_bytes).run();
}

Packing pack_ranges(std::span<const LiveRange> ranges, int64_t align_bytes,
                    std::vector<PackerTotal>* totals) {
  const int64_t bound = live_lower_bound(ranges, align_bytes);
  Packing best;
  bool any = false;
  for (const Packer& packer : kPackers) {
    // Whoever wants to compare wants all of them; for the plan the first that cannot be beaten
    // does.
    if (any && best.total_bytes == bound && totals == nullptr) break;
    std::optional<Packing> other = packer.run(ranges, align_bytes);
    if (!other) continue;
    if (totals != nullptr) totals->push_back({packer.name, other->total_bytes});
    if (any && other->total_bytes >= best.total_bytes) continue;
    best = std::move(*other);
    any = true;
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
