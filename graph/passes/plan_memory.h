#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace sgactor::graph {

/// One thing to place: `bytes` live over the inclusive range [first, last] of positions, or, where
/// `parts` is not empty, over these ranges within it only (ascending, disjoint).
struct LiveRange {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
  std::vector<std::pair<int32_t, int32_t>> parts = {};
};
struct Packing {
  std::vector<int64_t> offsets;
  int64_t total_bytes = 0;
};
/// Offsets such that ranges that overlap in time do not overlap in space. Greedy by size, best fit
/// (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, greedy by
/// size). Offsets are multiples of `align_bytes`. Deterministic. O(n^2) worst case.
Packing pack_by_size(std::span<const LiveRange> ranges, int64_t align_bytes);
/// First fit in the order of first use: what an allocator at run time would do.
Packing pack_first_fit(std::span<const LiveRange> ranges, int64_t align_bytes);
/// The smallest of all packings, by branch and bound over the orders from the bottom up. Nothing
/// where there are more than ten ranges with bytes, or where it takes too many steps.
std::optional<Packing> pack_exact(std::span<const LiveRange> ranges, int64_t align_bytes);

struct PackerTotal {
  const char* packer = "";
  int64_t total_bytes = 0;
};
/// The best of pack_by_size, the same greedy in two other orders (longest range first; largest
/// product of size and length first), pack_first_fit and pack_exact. Stops at the first that meets
/// live_lower_bound, unless `totals` wants what each of them takes.
Packing pack_ranges(std::span<const LiveRange> ranges, int64_t align_bytes,
                    std::vector<PackerTotal>* totals = nullptr);
/// Most bytes live at one time: no packing can need less.
int64_t live_lower_bound(std::span<const LiveRange> ranges, int64_t align_bytes);

/// How program 0's activations and workspaces were packed.
struct MemoryReport {
  std::vector<PackerTotal> packers;
  int64_t num_ranges = 0;
  int64_t live_bytes = 0;  ///< live_lower_bound of the ranges: no packing of them can need less
};

/// Gives every value of every subgraph's body a place in its workspace, and every buffer slot of
/// every program an offset in the arena, by lifetime. Views share their operand's bytes; kMust
/// aliases share a buffer; kMay aliases are taken where the operand's last use is the op and sizes
/// agree. Sizes by plan.storage, rounded up to `align_bytes`, a positive multiple of
/// kMinAlignBytes. Fills plan.memory. Deterministic.
///
/// The arena: persistent buffers, then batch slots, each at its own address; then activations and
/// workspaces, packed by the live ranges of micro-batch 0 and of the reduce and update launches.
/// The other micro-batches run the same launches in the same order, so what holds for the first
/// holds for all (verify_memory checks each). Where there are lanes that communicate, or
/// micro-batches overlap, every slot is packed by all its ranges in program order; what
/// communicates keeps its operands a little longer (ScheduleOptions::slack) so that it need not be
/// waited for. Two packings, never one: values inside a subgraph's workspace, once a subgraph; then
/// whole workspaces and activations. Pre: verify_structure(plan) is ok. Post: verify_memory(plan)
/// is ok, unless an output takes the bytes of an input that the body still reads
/// (partition_subgraphs makes no such plan). Errors: kInvalidPlan, kInvalidArgument (align_bytes);
/// `plan` is unchanged then.
///
/// `head_room_bytes`: bytes of a workspace that are left free while a fused head runs, or fewer
/// where all of its logits take fewer: a backend that keeps a block of logits may keep it there
/// (it finds the gap between the places) and then needs no memory beside the arena.
Status plan_memory(Plan& plan, int64_t align_bytes = 256, MemoryReport* report = nullptr,
                   int64_t head_room_bytes = 0);

}  // namespace sgactor::graph
