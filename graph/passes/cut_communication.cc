#include "graph/passes/cut_communication.h"

#include "graph/ir/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace sgactor::graph {
namespace {

using Place = std::pair<Phase, int32_t>;       // phase and segment
using Part = std::tuple<int32_t, bool, OpId>;  // level, communicates, which op that does

bool communicates(const Op& op) { return op_info(op.kind).communicates; }

/// How many communications of its own phase and segment an op stands behind; -1: one that waits for
/// nothing there.
std::vector<int32_t> find_levels(const Graph& graph) {
  std::vector<int32_t> levels(graph.ops().size(), 0);
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    int32_t level = communicates(op) ? -1 : 0;
    for (ValueId v : op.operands) {
      const OpId producer = graph.value(v).producer;
      if (producer == kNoOp) continue;
      const Op& from = graph.op(producer);
      if (from.phase != op.phase || from.segment != op.segment) continue;
      level = std::max(level, levels[producer] + (communicates(from) ? 1 : 0));
    }
    levels[o] = level;
  }
  return levels;
}

std::map<Place, std::vector<Part>> find_parts(const Graph& graph,
                                              const std::vector<int32_t>& levels) {
  std::map<Place, std::vector<Part>> parts;
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    const bool moves = communicates(op);
    parts[{op.phase, op.segment}].emplace_back(levels[o], moves, moves ? o : 0);
  }
  for (auto& [place, list] : parts) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return parts;
}

CutSegment name_part(const Graph& graph, int32_t segment, const std::vector<Part>& parts,
                     size_t index) {
  const auto& [level, moves, op] = parts[index];
  int32_t number = 0;  // of those of its kind before it
  for (size_t i = 0; i < index; ++i) {
    const auto& [other_level, other_moves, other] = parts[i];
    const bool alike =
        other_moves == moves && (!moves || graph.op(other).kind == graph.op(op).kind);
    if (alike) ++number;
  }
  CutSegment cut{segment, ""};
  if (moves) cut.suffix = fmt::format(".{}", op_info(graph.op(op).kind).name);
  if (number > 0) cut.suffix += fmt::format(".{}", number);
  return cut;
}

}  // namespace

CutGraph cut_communication(const Graph& graph) {
  const std::vector<int32_t> levels = find_levels(graph);
  const std::map<Place, std::vector<Part>> parts = find_parts(graph, levels);
  size_t width = 1;
  for (const auto& [place, list] : parts) width = std::max(width, list.size());
  CutGraph cut;
  cut.graph.name = graph.name;
  const size_t num_segments = std::max<size_t>(graph.segments().size(), 1);
  for (size_t s = 0; s < num_segments * width; ++s) {
    cut.graph.segment_index(fmt::format("{}~{}", s / width, s % width));
  }
  // Pieces of the backward run from the last segment to the first.
  const auto place_of = [&](const Op& op, size_t part) {
    const size_t within = op.phase == Phase::kBackward ? width - 1 - part : part;
    return static_cast<int32_t>((static_cast<size_t>(op.segment) * width) + within);
  };
  std::vector<ValueId> map(graph.values().size(), kNoValue);
  for (const GraphInput& input : graph.inputs()) {
    map[input.value] = cut.graph.add_input(graph.type(input.value), input.role, input.name);
  }
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    const std::vector<Part>& list = parts.at({op.phase, op.segment});
    const bool moves = communicates(op);
    const Part mine(levels[o], moves, moves ? o : 0);
    const auto part =
        static_cast<size_t>(std::lower_bound(list.begin(), list.end(), mine) - list.begin());
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(map[v]);
    std::vector<TensorType> types;
    for (ValueId v : op.results) types.push_back(graph.type(v));
    const OpId copied = cut.graph.add_op(op.kind, std::move(operands), op.attrs, types, op.phase,
                                         place_of(op, part));
    for (size_t r = 0; r < op.results.size(); ++r) {
      map[op.results[r]] = cut.graph.op(copied).results[r];
    }
    const std::pair<Phase, int32_t> piece(op.phase, place_of(op, part));
    if (!cut.pieces.contains(piece)) cut.pieces[piece] = name_part(graph, op.segment, list, part);
  }
  for (const GraphOutput& output : graph.outputs()) {
    cut.graph.add_output(map[output.value], output.role, output.name);
  }
  return cut;
}

}  // namespace sgactor::graph
