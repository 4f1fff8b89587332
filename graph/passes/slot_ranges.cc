#include "graph/passes/slot_ranges.h"

#include "graph/plan/program_order.h"
#include "graph/plan/verify_program.h"

#include <algorithm>
#include <utility>

namespace sgactor::graph {
namespace {

using Part = UseRange;

class RangeCollector {
 public:
  RangeCollector(const RankProgram& program, int32_t slack) : program_(program), slack_(slack) {}

  std::vector<std::vector<UseRange>> uses() {
    find_places();
    uses_.resize(program_.buffers.size());
    for (size_t b = 0; b < uses_.size(); ++b) {
      if (is_transient(program_.buffers[b])) {
        uses_[b].assign(static_cast<size_t>(program_.num_micro_batches), Part{-1, -1});
      }
    }
    for_each_touch(program_, [this](BufferId id, const Firing& f, int32_t index, bool is_input) {
      touch(id, f, index, is_input);
    });
    return uses_;
  }
  std::vector<std::vector<LiveRange>> run() {
    (void)uses();
    std::vector<std::vector<LiveRange>> ranges(program_.buffers.size());
    for (size_t b = 0; b < ranges.size(); ++b) {
      if (is_transient(program_.buffers[b])) ranges[b] = ranges_of(b);
    }
    return ranges;
  }

 private:
  static bool is_transient(const Buffer& b) {
    return !is_persistent(b.kind) && b.kind != BufferKind::kBatch;
  }
  void find_places() {
    prepared_ = prepared_buffers(program_);
    for (const OrderedFiring& at : program_order(program_)) {
      if (at.lane == 0) place_.push_back(num_places_);
      ++num_places_;
    }
  }
  /// Place of lane 0's firing `position`, cut to what exists.
  [[nodiscard]] int32_t place_of(int32_t position) const {
    if (place_.empty()) return 0;
    const auto last = static_cast<int32_t>(place_.size()) - 1;
    return place_[static_cast<size_t>(std::clamp(position, 0, last))];
  }
  void touch(BufferId id, const Firing& f, int32_t index, bool is_input) {
    std::vector<Part>& uses = uses_[static_cast<size_t>(id)];
    if (uses.empty()) return;
    int32_t first = index;
    int32_t last = index;
    if (program_.launches[static_cast<size_t>(f.launch)].kind != LaunchKind::kSubgraph) {
      if (is_input) last = std::max(index, place_of(f.start + slack_));
      if (!is_input) first = std::min(index, place_of(f.start - 1));
    }
    Part& part = uses[prepared_[static_cast<size_t>(id)] ? 0 : static_cast<size_t>(f.micro_batch)];
    part.first = part.first < 0 ? first : std::min(part.first, first);
    part.second = std::max(part.second, last);
  }
  std::vector<LiveRange> ranges_of(size_t b) const {
    const Buffer& buffer = program_.buffers[b];
    std::vector<LiveRange> ranges(static_cast<size_t>(buffer.num_slots));
    for (LiveRange& r : ranges) r.bytes = buffer.bytes;
    for (size_t m = 0; m < uses_[b].size(); ++m) {
      if (uses_[b][m].first < 0) continue;
      auto& parts = ranges[m % ranges.size()].parts;
      const Part part = uses_[b][m];
      if (!parts.empty() && part.first <= parts.back().second + 1) {
        parts.back().second = std::max(parts.back().second, part.second);
      } else {
        parts.push_back(part);
      }
    }
    for (LiveRange& r : ranges) {
      if (r.parts.empty()) continue;
      r.first = r.parts.front().first;
      r.last = r.parts.back().second;
      if (r.parts.size() == 1) r.parts.clear();
    }
    return ranges;
  }

  const RankProgram& program_;
  int32_t slack_;
  std::vector<bool> prepared_;
  std::vector<int32_t> place_;  // of lane 0's firings
  int32_t num_places_ = 0;
  std::vector<std::vector<Part>> uses_;  // by buffer and micro-batch
};

}  // namespace

std::vector<std::vector<LiveRange>> slot_ranges(const RankProgram& program, int32_t slack) {
  return RangeCollector(program, slack).run();
}

std::vector<std::vector<UseRange>> micro_batch_ranges(const RankProgram& program, int32_t slack) {
  return RangeCollector(program, slack).uses();
}

}  // namespace sgactor::graph
