#include "kernels/cpu/widen.h"

#include "graph/base/units.h"
#include "graph/ir/op_table.h"

#include <algorithm>

namespace sgactor::kernels::cpu {
namespace {

using graph::Graph;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

bool is_narrow(const TensorType& type) {
  return type.dtype == DType::kBF16 || type.dtype == DType::kF16;
}

/// Ops that only move bytes, or convert themselves.
bool moves_only(OpKind kind) {
  switch (kind) {
    case OpKind::kCast:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kConcat:
    case OpKind::kBroadcast:
    case OpKind::kConstant:
    case OpKind::kGather:
    case OpKind::kGatherShard:
    case OpKind::kSliceShard:
    case OpKind::kQuantizeF8:
    case OpKind::kQuantizeF8Observed:
    case OpKind::kQuantizeF8Both:
    case OpKind::kScaledMatmul:
      return true;
    default:
      return false;
  }
}

bool is_widened(const Graph& body, const Op& op) {
  if (moves_only(op.kind)) return false;
  if (op.kind == OpKind::kAccumulate && body.type(op.operands[1]).dtype == DType::kBF16 &&
      body.type(op.operands[0]).dtype == DType::kF32) {
    return false;  // has a kernel of its own
  }
  return std::any_of(op.operands.begin(), op.operands.end(),
                     [&](ValueId v) { return is_narrow(body.type(v)); });
}

TensorType wide(TensorType type) {
  if (is_narrow(type)) type.dtype = DType::kF32;
  return type;
}

class Widener {
 public:
  Widener(const Graph& body, std::span<const Place> places) : body_(body), places_(places) {}

  Result<WidenedBody> run() {
    out_.graph.name = body_.name;
    for (const std::string& segment : body_.segments()) out_.graph.segment_index(segment);
    map_.assign(body_.values().size(), graph::kNoValue);
    for (const graph::GraphInput& in : body_.inputs()) {
      const ValueId v = out_.graph.add_input(body_.type(in.value), in.role, in.name);
      bind(in.value, v);
    }
    for (const Op& op : body_.ops()) {
      if (is_widened(body_, op)) {
        SGA_TRY(widen(op));
      } else {
        copy(op);
      }
    }
    for (const graph::GraphOutput& o : body_.outputs()) {
      out_.graph.add_output(map_[o.value], o.role, o.name);
    }
    return std::move(out_);
  }

 private:
  void bind(ValueId old, ValueId value) {
    map_[old] = value;
    out_.places.push_back(places_[old]);
    out_.scratch_offsets.push_back(WidenedBody::kPlaced);
  }

  void bind_scratch(const TensorType& type) {
    out_.places.push_back({});
    out_.scratch_offsets.push_back(scratch_);
    scratch_ += round_up(type.bytes(), 64);
    out_.scratch_bytes = std::max(out_.scratch_bytes, scratch_);
  }

  void copy(const Op& op) {
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (ValueId v : op.operands) operands.push_back(map_[v]);
    for (ValueId v : op.results) types.push_back(body_.type(v));
    const graph::OpId id =
        out_.graph.add_op(op.kind, operands, op.attrs, types, op.phase, op.segment);
    for (size_t r = 0; r < op.results.size(); ++r)
      bind(op.results[r], out_.graph.op(id).results[r]);
  }

  ValueId cast(const Op& op, ValueId from, const TensorType& type) {
    graph::Attrs attrs;
    attrs.set("dtype", type.dtype);
    const graph::OpId id =
        out_.graph.add_op(OpKind::kCast, {from}, attrs, {type}, op.phase, op.segment);
    return out_.graph.op(id).results[0];
  }

  Status widen(const Op& op) {
    scratch_ = 0;
    std::vector<ValueId> operands;
    std::vector<TensorType> operand_types;
    for (ValueId v : op.operands) {
      const TensorType type = wide(body_.type(v));
      operand_types.push_back(type);
      if (!is_narrow(body_.type(v))) {
        operands.push_back(map_[v]);
        continue;
      }
      operands.push_back(cast(op, map_[v], type));
      bind_scratch(type);
    }
    SGA_ASSIGN(const std::vector<TensorType> types,
               graph::infer_types(op.kind, operand_types, op.attrs));
    const graph::OpId id =
        out_.graph.add_op(op.kind, operands, op.attrs, types, op.phase, op.segment);
    const std::vector<ValueId> results = out_.graph.op(id).results;
    for (size_t r = 0; r < results.size(); ++r) {
      if (types[r] == body_.type(op.results[r])) {
        bind(op.results[r], results[r]);
      } else {
        bind_scratch(types[r]);
      }
    }
    for (size_t r = 0; r < results.size(); ++r) {
      const TensorType& type = body_.type(op.results[r]);
      if (types[r] != type) bind(op.results[r], cast(op, results[r], type));
    }
    return {};
  }

  const Graph& body_;
  std::span<const Place> places_;
  WidenedBody out_;
  std::vector<ValueId> map_;
  int64_t scratch_ = 0;
};

}  // namespace

bool needs_widening(const Graph& body) {
  return std::any_of(body.ops().begin(), body.ops().end(),
                     [&](const Op& op) { return is_widened(body, op); });
}

Result<WidenedBody> widen_body(const Graph& body, std::span<const Place> places) {
  return Widener(body, places).run();
}

}  // namespace sgactor::kernels::cpu
