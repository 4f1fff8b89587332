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
