// The arena over a step: x is the order of launches, y the offset, a rectangle a slot of a buffer.
#include "graph/base/units.h"
#include "graph/compiler/explain_parts.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::graph::explain {
namespace {

constexpr double kWidth = 1200;
constexpr double kHeight = 420;
constexpr size_t kMaxRects = 4000;

/// Columns of the drawing: firings of lane 0 of micro-batch 0 and those once a step. The rest
/// repeats them in slot m % num_slots.
class Columns {
 public:
  explicit Columns(const RankProgram& program) {
    before_.push_back(0);
    for (const Firing& f : program.lanes[0].order) {
      const Phase phase = program.launches[static_cast<size_t>(f.launch)].phase;
      const bool drawn = f.micro_batch == 0 || !fires_per_micro_batch(phase);
      before_.push_back(before_.back() + (drawn ? 1 : 0));
    }
  }
  [[nodiscard]] double count() const { return std::max(1, before_.back()); }
  [[nodiscard]] double begin(int32_t position) const { return before_[index(position)]; }
  [[nodiscard]] double end(int32_t position) const { return before_[index(position + 1)]; }

 private:
  [[nodiscard]] size_t index(int32_t position) const {
    return std::min(static_cast<size_t>(std::max(position, 0)), before_.size() - 1);
  }
  std::vector<int32_t> before_;  // drawn firings before each position
};

struct Range {
  int64_t low = 0;
  int64_t high = 0;
};

Range transient_range(const RankProgram& program) {
  Range range{program.arena_bytes, 0};
  for (const Buffer& b : program.buffers) {
    if (is_persistent(b.kind)) continue;
    for (int64_t offset : b.offsets) {
      range.low = std::min(range.low, offset);
      range.high = std::max(range.high, offset + b.bytes);
    }
  }
  return range;
}

std::string draw(const RankProgram& program, Range range, bool transient_only) {
  const Columns columns(program);
  std::vector<const Buffer*> buffers;
  for (const Buffer& b : program.buffers) {
    if (b.bytes > 0 && !(transient_only && is_persistent(b.kind))) buffers.push_back(&b);
  }
  std::stable_sort(buffers.begin(), buffers.end(),
                   [](const Buffer* a, const Buffer* b) { return a->bytes > b->bytes; });
  const size_t left_out = buffers.size() > kMaxRects ? buffers.size() - kMaxRects : 0;
  buffers.resize(buffers.size() - left_out);
  const double bytes = std::max<double>(1, static_cast<double>(range.high - range.low));
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" role=\"img\">\n<rect class=\"frame\" "
      "width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, kHeight);
  for (const Buffer* b : buffers) {
    const double x = columns.begin(b->first_use) / columns.count() * kWidth;
    const double right = columns.end(b->last_use) / columns.count() * kWidth;
    for (size_t slot = 0; slot < b->offsets.size(); ++slot) {
      const int64_t offset = b->offsets[slot];
      const double y = static_cast<double>(offset - range.low) / bytes * kHeight;
      out +=
          rect(x, y, right - x, static_cast<double>(b->bytes) / bytes * kHeight, to_string(b->kind),
               fmt::format("{} ({}, slot {} of {}): {} {} at {}, launches {} to {}", b->name,
                           to_string(b->kind), slot, b->num_slots, format_bytes(b->bytes),
                           b->type.to_string(), offset, b->first_use, b->last_use));
    }
  }
  out += "</svg>\n";
  if (left_out > 0) {
    out += fmt::format("<p class=\"muted\">The {} smallest buffers are not drawn.</p>\n", left_out);
  }
  return out;
}

}  // namespace

std::string memory_section(const Plan& plan) {
  const RankProgram& program = plan.programs[0];
  std::string out =
      "<h2>Memory over a step</h2>\n<p>Left to right: launches of lane 0 in order, those of "
      "micro-batch 0 and those that run once. Top to bottom: the arena. Point at a rectangle for "
      "its buffer.</p>\n<p class=\"muted\">";
  for (int kind = 0; kind <= static_cast<int>(BufferKind::kWorkspace); ++kind) {
    const std::string_view name = to_string(static_cast<BufferKind>(kind));
    out += fmt::format(
        "<svg class=\"key\" viewBox=\"0 0 1 1\"><rect class=\"{0}\" width=\"1\" "
        "height=\"1\"/></svg>{0}",
        name);
  }
  out += fmt::format("</p>\n<p>The whole arena, {}:</p>\n", format_bytes(program.arena_bytes));
  out += draw(program, {0, program.arena_bytes}, false);
  const Range range = transient_range(program);
  if (range.high > range.low) {
    out += fmt::format("<p>Activations, batches and workspaces alone, {}:</p>\n",
                       format_bytes(range.high - range.low));
    out += draw(program, range, true);
  }
  return out;
}

}  // namespace sgactor::graph::explain
