#include "graph/passes/plan_memory.h"

#include "graph/base/units.h"
#include "graph/ir/builder.h"
#include "graph/passes/partition_subgraphs.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

namespace sgactor::graph {
namespace {

constexpr int64_t kAlign = 64;

std::vector<LiveRange> draw_ranges(int most, int32_t positions) {
  const int count = *rc::gen::inRange(0, most + 1);
  std::vector<LiveRange> ranges;
  for (int i = 0; i < count; ++i) {
    const auto first = *rc::gen::inRange<int32_t>(0, positions);
    const auto last = *rc::gen::inRange<int32_t>(first, positions);
    ranges.push_back({*rc::gen::inRange<int64_t>(0, 700), first, last});
  }
  return ranges;
}

bool overlap_in_time(const LiveRange& a, const LiveRange& b) {
  return a.first <= b.last && b.first <= a.last;
}

void check_packing(const std::vector<LiveRange>& ranges, const Packing& packing) {
  RC_ASSERT(packing.offsets.size() == ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    RC_ASSERT(packing.offsets[i] >= 0);
    RC_ASSERT(packing.offsets[i] % kAlign == 0);
    RC_ASSERT(packing.offsets[i] + ranges[i].bytes <= packing.total_bytes || ranges[i].bytes == 0);
    for (size_t j = 0; j < i; ++j) {
      if (!overlap_in_time(ranges[i], ranges[j])) continue;
      if (ranges[i].bytes == 0 || ranges[j].bytes == 0) continue;
      RC_ASSERT(packing.offsets[i] + ranges[i].bytes <= packing.offsets[j] ||
                packing.offsets[j] + ranges[j].bytes <= packing.offsets[i]);
    }
  }
}

/// Least total over all orders, each range at the lowest free offset. An optimal packing, taken by
/// rising offset, is such an order, so this is the optimum.
int64_t optimal_bytes(const std::vector<LiveRange>& ranges) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t best = -1;
  do {
    std::vector<int64_t> offset(ranges.size(), 0);
    int64_t total = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const LiveRange& range = ranges[order[k]];
      const int64_t bytes = round_up(range.bytes, kAlign);
      int64_t& at = offset[order[k]];
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t p = 0; p < k; ++p) {
          const LiveRange& other = ranges[order[p]];
          const int64_t begin = offset[order[p]];
          const int64_t end = begin + round_up(other.bytes, kAlign);
          if (!overlap_in_time(range, other) || at >= end || begin >= at + bytes) continue;
          at = end;
          moved = true;
        }
      }
      total = std::max(total, at + bytes);
    }
    if (best < 0 || total < best) best = total;
  } while (std::next_permutation(order.begin(), order.end()));
  return std::max<int64_t>(best, 0);
}

TEST(PackRangesTest, NothingThatLivesAtOnceOverlaps) {
  ASSERT_TRUE(rc::check([] {
    const std::vector<LiveRange> ranges = draw_ranges(60, 20);
    const int64_t bound = live_lower_bound(ranges, kAlign);
    for (const Packing& packing : {pack_by_size(ranges, kAlign), pack_ranges(ranges, kAlign)}) {
      check_packing(ranges, packing);
      RC_ASSERT(packing.total_bytes >= bound);
    }
    RC_ASSERT(pack_ranges(ranges, kAlign).total_bytes <= pack_by_size(ranges, kAlign).total_bytes);
  }));
}

TEST(PackRangesTest, MeetsTheOptimumOfSmallCases) {
  int64_t greedy = 0;
  int64_t optimal = 0;
  ASSERT_TRUE(rc::check([&] {
    const std::vector<LiveRange> ranges = draw_ranges(6, 8);
    const int64_t best = optimal_bytes(ranges);
    RC_ASSERT(live_lower_bound(ranges, kAlign) <= best);
    const std::optional<Packing> exact = pack_exact(ranges, kAlign);
    RC_ASSERT(exact.has_value());
    check_packing(ranges, *exact);
    RC_ASSERT(exact->total_bytes == best);
    RC_ASSERT(pack_ranges(ranges, kAlign).total_bytes == best);
    const int64_t total = pack_by_size(ranges, kAlign).total_bytes;
    RC_ASSERT(2 * total <= 3 * best);
    greedy += total;
    optimal += best;
  }));
  EXPECT_LE(static_cast<double>(greedy), 1.05 * static_cast<double>(optimal));
}

TEST(PackRangesTest, EveryPackerIsComparedWhereAsked) {
  // Four blocks that a greedy by size cannot pack as tightly as they go.
  const std::vector<LiveRange> ranges = {{300, 0, 1}, {200, 1, 2}, {200, 2, 3},
                                         {300, 3, 4}, {100, 0, 4}, {256, 2, 2}};
  std::vector<PackerTotal> totals;
  const Packing best = pack_ranges(ranges, kAlign, &totals);
  check_packing(ranges, best);
  ASSERT_EQ(totals.size(), 5U);
  EXPECT_STREQ(totals[0].packer, "greedy by size");
  EXPECT_STREQ(totals[3].packer, "first fit by time");
  EXPECT_STREQ(totals[4].packer, "exact");
  for (const PackerTotal& t : totals) EXPECT_GE(t.total_bytes, totals[4].total_bytes) << t.packer;
  EXPECT_EQ(best.total_bytes, totals[4].total_bytes);
}

TEST(PackRangesTest, ManyRangesHaveNoExactAnswer) {
  std::vector<LiveRange> ranges;
  for (int32_t i = 0; i < 11; ++i) ranges.push_back({100, i, i + 1});
  EXPECT_FALSE(pack_exact(ranges, kAlign).has_value());
}

TEST(PackRangesTest, EqualRangesGiveEqualOffsets) {
  const std::vector<LiveRange> ranges = {{100, 0, 3}, {100, 1, 2}, {100, 3, 4}, {0, 0, 4}};
  const Packing a = pack_ranges(ranges, kAlign);
  const Packing b = pack_ranges(ranges, kAlign);
  EXPECT_EQ(a.offsets, b.offsets);
  EXPECT_EQ(a.total_bytes, 2 * 128);
}

TEST(PackRangesTest, NestedRangesMeetTheLowerBound) {
  // Forward activations live until their backward: the shape of a training step.
  std::vector<LiveRange> ranges;
  for (int32_t layer = 0; layer < 20; ++layer) {
    for (int64_t k = 1; k <= 5; ++k) ranges.push_back({k * 1000, layer, 39 - layer});
    ranges.push_back({7000, layer, layer});
    ranges.push_back({9000, 39 - layer, 39 - layer});
  }
  EXPECT_EQ(pack_ranges(ranges, kAlign).total_bytes, live_lower_bound(ranges, kAlign));
}

TEST(PackRangesTest, NothingNeedsNothing) {
  EXPECT_EQ(pack_ranges({}, kAlign).total_bytes, 0);
  EXPECT_EQ(live_lower_bound({}, kAlign), 0);
}

/// Workspace of the only subgraph of a head that reads a value of its own.
int64_t head_workspace(int64_t room) {
  Graph graph;
  Builder b(graph);
  b.set_segment("head");
  const ValueId x = b.input({DType::kF32, {32, 16}}, Role::kParameter, "x");
  const ValueId w = b.input({DType::kF32, {64, 16}}, Role::kParameter, "w");
  const ValueId targets = b.input({DType::kI32, {32}}, Role::kTargets, "targets");
  Attrs twice;
  twice.set("factor", 2.0);
  const ValueId rows = b.op1(OpKind::kScale, {x}, twice);
  b.output(b.op(OpKind::kLinearCrossEntropy, {rows, w, targets})[0], Role::kLoss, "loss");
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  Result<Plan> plan = partition_forward(graph, StorageModel::kNative);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  if (!plan.ok()) return -1;
  const Status planned = plan_memory(*plan, kAlign, nullptr, room);
  EXPECT_TRUE(planned.ok()) << planned.to_string();
  EXPECT_TRUE(verify_plan(*plan).ok());
  EXPECT_EQ(plan->subgraphs.size(), 1U);
  return plan->subgraphs[0].workspace_bytes;
}

TEST(PlanMemoryTest, LeavesRoomForABlockOfLogits) {
  const int64_t without = head_workspace(0);
  EXPECT_EQ(head_workspace(1000), without + 1024) << "rounded up, beside what the head reads";
  EXPECT_EQ(head_workspace(int64_t{1} << 40), without + 32 * 64 * 4) << "no more than all logits";
}

}  // namespace
}  // namespace sgactor::graph
