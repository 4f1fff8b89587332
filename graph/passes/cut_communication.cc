#include "graph/passes/cut_communication.h"

#include "graph/ir/op_table.h"
#include "graph/passes/rewrite.h"
#include "graph/plan/body_storage.h"

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

std::vector<size_t> needed_pairs(const GraphView& view, const Op& op) {
  std::vector<size_t> needed;
  for (size_t i = 0; i < op.results.size(); ++i) {
    const ValueId v = op.results[i];
    if (view.is_output(v) || !view.users(v).empty()) needed.push_back(i);
  }
  return needed;
}

/// Attributes for some of an op's pairs: lists have an entry a pair.
Attrs attrs_of(const Op& op, const std::vector<size_t>& pairs) {
  Attrs attrs = op.attrs;
  for (const char* name : {"sizes", "pieces"}) {
    if (op.attrs.find(name) == nullptr) continue;
    std::vector<int64_t> kept;
    for (size_t i : pairs) kept.push_back(op.attrs.list(name)[i]);
    attrs.set(name, std::move(kept));
  }
  return attrs;
}

/// What a channel moves lies in a buffer of its own, so a view of it will not do: each such op
/// reads the owner of the bytes, and where the shape matters its result is viewed instead.
/// Pairs whose result nobody reads any more (fusion may have taken its reader away) are not moved.
Graph strip_views(const Graph& graph) {
  GraphCopier copier(graph);
  const GraphView view(graph);
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    if (!communicates(op)) {
      copier.copy(o);
      continue;
    }
    const std::vector<size_t> needed = needed_pairs(view, op);
    if (needed.empty()) continue;
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (size_t i : needed) {
      const ValueId root = view_root(graph, op.operands[i]);
      operands.push_back(copier[root]);
      types.push_back(op.kind == OpKind::kAllReduce ? graph.type(root) : graph.type(op.results[i]));
    }
    Graph& out = copier.graph();
    const OpId moved =
        out.add_op(op.kind, operands, attrs_of(op, needed), types, op.phase, op.segment);
    for (size_t k = 0; k < needed.size(); ++k) {
      ValueId result = out.op(moved).results[k];
      const TensorType& wanted = graph.type(op.results[needed[k]]);
      if (types[k] != wanted) {
        Attrs attrs;
        attrs.set("shape", wanted.shape.dims());
        const OpId viewed =
            out.add_op(OpKind::kReshape, {result}, attrs, {wanted}, op.phase, op.segment);
        result = out.op(viewed).results[0];
      }
      copier.bind(op.results[needed[k]], result);
    }
  }
  copier.copy_outputs();
  return clean_graph(copier.take(), false);
}

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

CutGraph cut_communication(const Graph& source) {
  const Graph graph = strip_views(clean_graph(source, false));
  const std::vector<int32_t> levels = find_levels(graph);
  const std::map<Place, std::vector<Part>> parts = find_parts(graph, levels);
  size_t width = 1;
  for (const auto& [place, list] : parts) width = std::max(width, list.size());
  CutGraph cut;
  cut.graph.name = graph.name;
  // A graph without segments has one, which has no name; only where it is cut does it need names.
  const size_t num_segments = graph.segments().empty() && width > 1 ? 1 : graph.segments().size();
  for (size_t s = 0; s < num_segments * width; ++s) {
    const std::string name = graph.segments().empty() ? "all" : graph.segments()[s / width];
    cut.graph.segment_index(s % width == 0 ? name : fmt::format("{}~{}", name, s % width));
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
