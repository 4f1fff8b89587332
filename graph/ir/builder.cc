#include "graph/ir/builder.h"

#include "graph/ir/op_table.h"

#include <fmt/format.h>

namespace sgactor::graph {

TensorType Builder::type(ValueId v) const {
  return v < graph_.values().size() ? graph_.type(v) : TensorType{};
}

ValueId Builder::input(TensorType type, Role role, std::string name) {
  if (!status_.ok()) return kNoValue;
  if (Status s = check_type(type); !s.ok()) {
    fail(s.with_context(fmt::format("input \"{}\"", name)));
    return kNoValue;
  }
  return graph_.add_input(std::move(type), role, std::move(name));
}

void Builder::output(ValueId v, Role role, std::string name) {
  if (!status_.ok()) return;
  if (v >= graph_.values().size()) {
    fail(invalid_plan(fmt::format("output \"{}\" has no value", name)));
    return;
  }
  graph_.add_output(v, role, std::move(name));
}

std::vector<ValueId> Builder::op(OpKind kind, std::vector<ValueId> operands, Attrs attrs) {
  const OpInfo& info = op_info(kind);
  std::vector<ValueId> none(
      info.num_results < 0 ? operands.size() : static_cast<size_t>(info.num_results), kNoValue);
  if (!status_.ok()) return none;
  std::vector<TensorType> types;
  types.reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] >= graph_.values().size()) {
      fail(invalid_plan(
          fmt::format("op {} {}: operand {} is no value", graph_.ops().size(), info.name, i)));
      return none;
    }
    types.push_back(graph_.type(operands[i]));
  }
  Result<std::vector<TensorType>> results = infer_types(kind, types, attrs);
  if (!results.ok()) {
    fail(results.status().with_context(fmt::format("op {} {}", graph_.ops().size(), info.name)));
    return none;
  }
  const OpId id =
      graph_.add_op(kind, std::move(operands), std::move(attrs), *results, phase_, segment_);
  return graph_.op(id).results;
}

ValueId Builder::op1(OpKind kind, std::vector<ValueId> operands, Attrs attrs) {
  return op(kind, std::move(operands), std::move(attrs))[0];
}

ValueId Builder::scale(ValueId x, double factor) {
  Attrs attrs;
  attrs.set("factor", factor);
  return op1(OpKind::kScale, {x}, std::move(attrs));
}

ValueId Builder::add_scalar(ValueId x, double value) {
  Attrs attrs;
  attrs.set("value", value);
  return op1(OpKind::kAddScalar, {x}, std::move(attrs));
}

ValueId Builder::cast(ValueId x, DType dtype) {
  Attrs attrs;
  attrs.set("dtype", dtype);
  return op1(OpKind::kCast, {x}, std::move(attrs));
}

ValueId Builder::reshape(ValueId x, std::vector<int64_t> shape) {
  Attrs attrs;
  attrs.set("shape", std::move(shape));
  return op1(OpKind::kReshape, {x}, std::move(attrs));
}

ValueId Builder::transpose(ValueId x, std::vector<int64_t> perm) {
  Attrs attrs;
  attrs.set("perm", std::move(perm));
  return op1(OpKind::kTranspose, {x}, std::move(attrs));
}

ValueId Builder::slice(ValueId x, int64_t axis, int64_t start, int64_t size) {
  Attrs attrs;
  attrs.set("axis", axis);
  attrs.set("start", start);
  attrs.set("size", size);
  return op1(OpKind::kSlice, {x}, std::move(attrs));
}

ValueId Builder::pad(ValueId x, int64_t axis, int64_t before, int64_t after) {
  Attrs attrs;
  attrs.set("axis", axis);
  attrs.set("before", before);
  attrs.set("after", after);
  return op1(OpKind::kPad, {x}, std::move(attrs));
}

ValueId Builder::concat(std::vector<ValueId> xs, int64_t axis) {
  Attrs attrs;
  attrs.set("axis", axis);
  return op1(OpKind::kConcat, std::move(xs), std::move(attrs));
}

ValueId Builder::broadcast(ValueId x, std::vector<int64_t> shape, std::vector<int64_t> axes) {
  Attrs attrs;
  attrs.set("shape", std::move(shape));
  attrs.set("axes", std::move(axes));
  return op1(OpKind::kBroadcast, {x}, std::move(attrs));
}

ValueId Builder::constant(double value, TensorType type) {
  Attrs attrs;
  attrs.set("value", value);
  attrs.set("shape", type.shape.dims());
  attrs.set("dtype", type.dtype);
  return op1(OpKind::kConstant, {}, std::move(attrs));
}

ValueId Builder::reduce_sum(ValueId x, std::vector<int64_t> axes) {
  Attrs attrs;
  attrs.set("axes", std::move(axes));
  return op1(OpKind::kReduceSum, {x}, std::move(attrs));
}

ValueId Builder::matmul(ValueId a, ValueId b, bool trans_a, bool trans_b) {
  Attrs attrs;
  attrs.set("trans_a", trans_a);
  attrs.set("trans_b", trans_b);
  return op1(OpKind::kMatmul, {a, b}, std::move(attrs));
}

ValueId Builder::causal_mask(ValueId x, double fill) {
  Attrs attrs;
  attrs.set("fill", fill);
  return op1(OpKind::kCausalMask, {x}, std::move(attrs));
}

std::pair<ValueId, ValueId> Builder::rms_norm(ValueId x, ValueId weight, double eps) {
  Attrs attrs;
  attrs.set("eps", eps);
  const std::vector<ValueId> results = op(OpKind::kRmsNorm, {x, weight}, std::move(attrs));
  return {results[0], results[1]};
}

ValueId Builder::rotate(ValueId x, ValueId cos, ValueId sin, bool inverse) {
  Attrs attrs;
  attrs.set("inverse", inverse);
  return op1(OpKind::kRotate, {x, cos, sin}, std::move(attrs));
}

std::pair<ValueId, ValueId> Builder::cross_entropy(ValueId logits, ValueId targets) {
  const std::vector<ValueId> results = op(OpKind::kCrossEntropy, {logits, targets});
  return {results[0], results[1]};
}

}  // namespace sgactor::graph
