// Gradients of matmul and of the pieces of a transformer.
#include "graph/ir/builder.h"
#include "graph/ir/gradient_rules.h"

namespace sgactor::graph::rules {

void matmul_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId a = op.operands[0];
  const ValueId c = op.operands[1];
  const bool trans_a = op.attrs.flag("trans_a");
  const bool trans_c = op.attrs.flag("trans_b");
  // With A = op(a), C = op(c): dA = g C^T and dC = A^T g, each transposed back where op transposes.
  out[0] = trans_a ? b.matmul(c, g[0], trans_c, true) : b.matmul(g[0], c, false, !trans_c);
  out[1] = trans_c ? b.matmul(g[0], a, true, trans_a) : b.matmul(a, g[0], !trans_a, false);
  if (op.operands.size() > 2) out[2] = g[0];
}

void softmax_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.op1(OpKind::kSoftmaxGrad, {op.results[0], g[0]});
}

void causal_mask_gradient(Builder& b, const Op& /*op*/, Grads g, OperandGrads out) {
  out[0] = b.causal_mask(g[0], 0.0);
}

void rms_norm_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  if (g[1] != kNoValue) {
    b.fail(invalid_plan("rms_norm has no gradient through its result rstd"));
    return;
  }
  const std::vector<ValueId> grads =
      b.op(OpKind::kRmsNormGrad, {g[0], op.operands[0], op.operands[1], op.results[1]});
  out[0] = grads[0];
  out[1] = grads[1];
}

void rotate_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[0] = b.rotate(g[0], op.operands[1], op.operands[2], !op.attrs.flag("inverse"));
}

void gather_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  Attrs attrs;
  attrs.set("rows", b.type(op.operands[0]).shape.dim(0));
  out[0] = b.op1(OpKind::kScatterAdd, {op.operands[1], g[0]}, std::move(attrs));
}

void scatter_add_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  out[1] = b.gather(g[0], op.operands[0]);
}

void cross_entropy_gradient(Builder& b, const Op& op, Grads g, OperandGrads out) {
  const ValueId logits = op.operands[0];
  if (g[0] != kNoValue) {
    out[0] = b.op1(OpKind::kCrossEntropyGrad, {logits, op.operands[1], op.results[1], g[0]});
  }
  if (g[1] == kNoValue) return;
  // d lse / d logits is the softmax of the row.
  const TensorType type = b.type(logits);
  const ValueId g_rows = b.broadcast(b.cast(g[1], type.dtype), type.shape.dims(), {1});
  const ValueId through_lse = b.mul(b.softmax(logits), g_rows);
  out[0] = out[0] == kNoValue ? through_lse : b.add(out[0], through_lse);
}

}  // namespace sgactor::graph::rules
