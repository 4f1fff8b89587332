#include "kernels/cuda/body_places.h"

#include "graph/base/units.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sgactor::kernels::cuda {

bool overlap(const Lowering& low, graph::ValueId a, graph::ValueId b) {
  const Place& left = low.place(a);
  const Place& right = low.place(b);
  if (left.space != right.space || left.index != right.index) return false;
  return left.offset < right.offset + low.type(b).bytes() &&
         right.offset < left.offset + low.type(a).bytes();
}

bool is_gone(const graph::Graph& body, graph::ValueId v, graph::OpId o) {
  for (const graph::GraphOutput& output : body.outputs()) {
    if (output.value == v) return false;
  }
  for (graph::OpId reader = o; reader < body.ops().size(); ++reader) {
    const graph::Op& op = body.op(reader);
    if (op.kind == graph::OpKind::kQuantizeF8Both) return false;
    if (std::find(op.operands.begin(), op.operands.end(), v) != op.operands.end()) return false;
  }
  return true;
}

namespace {

/// Ops whose operand 0 is an accumulator that they may leave unread.
bool has_accumulator(graph::OpKind kind) {
  using graph::OpKind;
  return kind == OpKind::kAccumulate || kind == OpKind::kMatmulAccumulate ||
         kind == OpKind::kScaledMatmulAccumulate || kind == OpKind::kLinearCrossEntropyGrad;
}

bool is_zero(const graph::Op& op) {
  return op.kind == graph::OpKind::kConstant && op.attrs.f64("value") == 0;
}

}  // namespace

bool starts_from_zero(const graph::Graph& body, const graph::Op& op) {
  if (!has_accumulator(op.kind)) return false;
  const graph::OpId producer = body.value(op.operands[0]).producer;
  return producer != graph::kNoOp && is_zero(body.op(producer));
}

bool is_zero_start(const graph::Graph& body, const graph::Op& constant) {
  if (!is_zero(constant)) return false;
  const graph::ValueId v = constant.results[0];
  for (const graph::GraphOutput& output : body.outputs()) {
    if (output.value == v) return false;
  }
  bool is_start = false;
  for (const graph::Op& op : body.ops()) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (op.operands[i] != v) continue;
      if (i != 0 || !has_accumulator(op.kind)) return false;
      is_start = true;
    }
  }
  return is_start;
}

namespace {

/// The only op that reads v; kNoOp if there are several, none, or v leaves the body.
graph::OpId only_reader(const graph::Graph& body, graph::ValueId v) {
  for (const graph::GraphOutput& output : body.outputs()) {
    if (output.value == v) return graph::kNoOp;
  }
  graph::OpId reader = graph::kNoOp;
  for (graph::OpId o = 0; o < body.ops().size(); ++o) {
    for (graph::ValueId operand : body.op(o).operands) {
      if (operand != v) continue;
      if (reader != graph::kNoOp) return graph::kNoOp;
      reader = o;
    }
  }
  return reader;
}

}  // namespace

graph::OpId accumulation_of_rows(const Lowering& low, const graph::Op& scatter) {
  const graph::Graph& body = low.body();
  const graph::ValueId rows = scatter.results[0];
  const graph::OpId reader = only_reader(body, rows);
  if (reader == graph::kNoOp || body.op(reader).kind != graph::OpKind::kAccumulate)
    return graph::kNoOp;
  const graph::Op& accumulate = body.op(reader);
  const graph::ValueId acc = accumulate.operands[0];
  if (accumulate.operands[1] != rows || low.type(acc) != low.type(rows)) return graph::kNoOp;
  // The sum's bytes must be its own already where the scatter stands.
  const graph::ValueId sum = accumulate.results[0];
  if (low.place(sum).space == Place::Space::kWorkspace) return graph::kNoOp;
  for (graph::ValueId operand : scatter.operands) {
    if (overlap(low, sum, operand)) return graph::kNoOp;
  }
  const bool untouched =
      starts_from_zero(body, accumulate) ||
      (body.value(acc).producer == graph::kNoOp && only_reader(body, acc) == reader);
  return untouched ? reader : graph::kNoOp;
}

FreeBytes largest_gap(const Lowering& low, const graph::Op& op) {
  const graph::Graph& body = low.body();
  const auto o = static_cast<graph::OpId>(&op - &body.op(0));
  std::vector<std::pair<int64_t, int64_t>> used;  // begin and end
  FreeBytes gap;
  for (graph::ValueId v = 0; v < body.values().size(); ++v) {
    const graph::OpId producer = body.value(v).producer;
    if (low.place(v).space != Place::Space::kWorkspace || producer > o) continue;
    if (producer != o && is_gone(body, v, o)) continue;
    used.emplace_back(low.place(v).offset, low.place(v).offset + low.type(v).bytes());
    // Constants may lie elsewhere, whatever the plan says.
    const bool constant = producer == graph::kNoOp || body.op(producer).operands.empty();
    if (!constant) gap.anchor = v;
  }
  if (gap.anchor == graph::kNoValue) return {};
  used.emplace_back(low.workspace_bytes(), low.workspace_bytes());
  std::sort(used.begin(), used.end());
  int64_t end = 0;
  for (const auto& [from, to] : used) {
    if (from - end > gap.bytes) {
      gap.bytes = from - end;
      gap.from_anchor = end - low.place(gap.anchor).offset;
    }
    end = std::max(end, round_up(to, 256));
  }
  return gap;
}

}  // namespace sgactor::kernels::cuda
