// Gradients of pointwise ops, structure and reductions. Notation: y = f(x) or f(a, c), g = dL/dy.
#include "graph/ir/gradient_rules.h"

#include "graph/ir/builder.h"

#include <numeric>

namespace sgactor::graph::rules {
namespace {

/// Sum of `g` over the leading dims along which `operand` was broadcast.
ValueId reduce_to(Builder& b, ValueId g, ValueId operand) {
  const int extra = b.type(g).shape.rank() - b.type(operand).shape.rank();
  if (extra <= 0) return g;
  std::vector<int64_t> axes(static_cast<size_t>(extra));
  std::iota(axes.begin(), axes.end(), 0);
  return b.reduce_sum(g, std::move(axes));
}

/// 1 where `x` is 0, and 0 where `x` is above: 0^x. The IR has no comparison.
ValueId is_zero(Builder& b, ValueId x) { return b.pow(b.constant(0, b.type(x)), x); }

/// Operand 0 of a reduction over `axes`, from a value of the reduced shape.
ValueId spread(Builder& b, const Op& op, ValueId reduced) {
  return b.broadcast(reduced, b.type(op.operands[0]).shape.dims(), op.attrs.list("axes"));
}

}  // namespace

void add_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = g[0];
  out[1] = reduce_to(b, g[0], op.operands[1]);
}

void sub_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = g[0];
  out[1] = b.neg(reduce_to(b, g[0], op.operands[1]));
}

void mul_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.mul(g[0], op.operands[1]);
  out[1] = reduce_to(b, b.mul(g[0], op.operands[0]), op.operands[1]);
}

void div_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.div(g[0], op.operands[1]);
  out[1] = b.neg(reduce_to(b, b.mul(out[0], op.results[0]), op.operands[1]));
}

void extremum_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId a = op.operands[0];
  const ValueId y = op.results[0];
  // The distance from the first operand to the result is exactly 0 where that operand was chosen.
  const ValueId distance = op.kind == OpKind::kMaximum ? b.sub(y, a) : b.sub(a, y);
  out[0] = b.mul(g[0], is_zero(b, distance));
  out[1] = reduce_to(b, b.sub(g[0], out[0]), op.operands[1]);
}

void pow_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId base = op.operands[0];
  const ValueId exponent = op.operands[1];
  // d/da a^c = c a^(c-1), with the exponent lifted to 0 where c is 0: there 0 * a^-1 would be no
  // number at a = 0.
  const ValueId magnitude = b.maximum(exponent, b.neg(exponent));
  const ValueId lifted = b.add_scalar(b.add(exponent, is_zero(b, magnitude)), -1.0);
  out[0] = b.mul(g[0], b.mul(b.pow(base, lifted), exponent));
  const OpId producer = b.graph().value(exponent).producer;
  if (producer != kNoOp && b.graph().op(producer).kind == OpKind::kConstant) return;
  // d/dc a^c = a^c log a, and 0 at a = 0: 0^a adds 1 there, so that the logarithm is 0.
  const ValueId logarithm = b.unary(OpKind::kLog, b.add(base, is_zero(b, base)));
  out[1] = reduce_to(b, b.mul(g[0], b.mul(op.results[0], logarithm)), exponent);
}

void neg_gradient(Builder& b, const Op& /*op*/, Grads g, OperandGrads out) { out[0] = b.neg(g[0]); }

void exp_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.mul(g[0], op.results[0]);
}

void log_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.div(g[0], op.operands[0]);
}

void sqrt_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.scale(b.div(g[0], op.results[0]), 0.5);
}

void rsqrt_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId y = op.results[0];
  out[0] = b.scale(b.mul(g[0], b.mul(y, b.square(y))), -0.5);
}

void square_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.scale(b.mul(g[0], op.operands[0]), 2.0);
}

void cos_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.neg(b.mul(g[0], b.unary(OpKind::kSin, op.operands[0])));
}

void sin_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.mul(g[0], b.unary(OpKind::kCos, op.operands[0]));
}

void sigmoid_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId y = op.results[0];
  out[0] = b.mul(g[0], b.mul(y, b.add_scalar(b.neg(y), 1.0)));
}

void silu_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.op1(OpKind::kSiluGrad, {op.operands[0], g[0]});
}

void scale_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.scale(g[0], op.attrs.f64("factor"));
}

void add_scalar_gradient(Builder& /*b*/, const Op& /*op*/, Grads g, OperandGrads out) {
  out[0] = g[0];
}

void cast_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const DType from = b.type(op.operands[0]).dtype;
  if (is_float(from) && is_float(op.attrs.dtype("dtype"))) out[0] = b.cast(g[0], from);
}

void reshape_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.reshape(g[0], b.type(op.operands[0]).shape.dims());
}

void transpose_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const std::vector<int64_t>& perm = op.attrs.list("perm");
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  out[0] = b.transpose(g[0], std::move(inverse));
}

void slice_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const int64_t axis = op.attrs.i64("axis");
  const int64_t start = op.attrs.i64("start");
  const int64_t extent = b.type(op.operands[0]).shape.dim(static_cast<int>(axis));
  out[0] = b.pad(g[0], axis, start, extent - start - op.attrs.i64("size"));
}

void pad_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const int64_t axis = op.attrs.i64("axis");
  const int64_t extent = b.type(op.operands[0]).shape.dim(static_cast<int>(axis));
  out[0] = b.slice(g[0], axis, op.attrs.i64("before"), extent);
}

void concat_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const int64_t axis = op.attrs.i64("axis");
  int64_t start = 0;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const int64_t extent = b.type(op.operands[i]).shape.dim(static_cast<int>(axis));
    out[i] = b.slice(g[0], axis, start, extent);
    start += extent;
  }
}

void broadcast_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const std::vector<int64_t>& axes = op.attrs.list("axes");
  out[0] = axes.empty() ? g[0] : b.reduce_sum(g[0], axes);
}

void reduce_sum_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = spread(b, op, g[0]);
}

void reduce_max_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId chosen = is_zero(b, b.sub(spread(b, op, op.results[0]), op.operands[0]));
  const ValueId count = b.reduce_sum(chosen, op.attrs.list("axes"));
  out[0] = b.mul(spread(b, op, b.div(g[0], count)), chosen);
}

void sum_squares_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const TensorType x = b.type(op.operands[0]);
  const int64_t chunks = b.type(op.results[0]).shape.dim(0);
  const int64_t chunk = op.attrs.i64("chunk");
  const int64_t count = x.num_elements();
  // A chunk may be longer than all of x (and huge): no more than x is ever spread.
  const int64_t width = chunks <= 1 ? count : chunk;
  const ValueId spread_g = b.reshape(b.broadcast(g[0], {chunks, width}, {1}), {chunks * width});
  const ValueId g_flat = b.slice(spread_g, 0, 0, count);
  out[0] = b.scale(b.mul(b.cast(b.reshape(g_flat, x.shape.dims()), x.dtype), op.operands[0]), 2.0);
}

void tree_sum_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.broadcast(g[0], b.type(op.operands[0]).shape.dims(), {0});
}

}  // namespace sgactor::graph::rules
