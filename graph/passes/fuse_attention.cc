// Finds attention as build_llama writes it: q[B,T,H,K] regrouped to [B,G,R*T,K] (H = G*R heads in G
// groups), k and v to [B,G,T,K].
#include "graph/passes/fusion_patterns.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace sgactor::graph {
namespace {

using Perm = std::vector<int64_t>;
const Perm kSplitHeads{0, 2, 3, 1, 4};  // [B,T,G,R,K] -> [B,G,R,T,K]
const Perm kMergeHeads{0, 3, 1, 2, 4};  // and back
const Perm kSwapTimeAndGroup{0, 2, 1, 3};

struct Forward {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;  // as the fused op reads them
  ValueId q_grouped = kNoValue, k_grouped = kNoValue, v_grouped = kNoValue;
  ValueId probabilities = kNoValue;       // softmax's result, [B,G,R,T,T]
  ValueId probabilities_flat = kNoValue;  // [B,G,R*T,T]
  ValueId out = kNoValue;                 // [B*T, H*K]
  double scale = 1;
  std::vector<OpId> ops;
};

struct Backward {
  ValueId dout = kNoValue;  // [B*T, H*K]
  ValueId dq = kNoValue, dk = kNoValue, dv = kNoValue;
  std::vector<OpId> ops;
  OpId first = kNoOp;
};

class Matcher {
 public:
  explicit Matcher(const GraphView& view) : view_(view) {}

  std::optional<Forward> forward(OpId softmax) const {
    Forward f;
    f.probabilities = view_.result(softmax);
    const OpId mask = view_.producer(view_.operand(softmax, 0), OpKind::kCausalMask);
    if (mask == kNoOp || !std::isinf(attrs(mask).f64("fill")) || attrs(mask).f64("fill") > 0)
      return {};
    const OpId unflatten = view_.producer(view_.operand(mask, 0), OpKind::kReshape);
    if (unflatten == kNoOp) return {};
    const OpId scale = view_.producer(view_.operand(unflatten, 0), OpKind::kScale);
    if (scale == kNoOp) return {};
    const OpId scores = view_.producer(view_.operand(scale, 0), OpKind::kMatmul);
    if (scores == kNoOp || !is_matmul(scores, false, true)) return {};
    f.scale = attrs(scale).f64("factor");
    f.q_grouped = view_.operand(scores, 0);
    f.k_grouped = view_.operand(scores, 1);
    f.ops = {softmax, mask, unflatten, scale, scores};
    if (!match_inputs(f) || !match_output(f)) return {};
    return f;
  }

  std::optional<Backward> backward(const Forward& f) const {
    const auto softmax_grads = view_.users_of_kind(f.probabilities, OpKind::kSoftmaxGrad);
    if (softmax_grads.size() != 1 || view_.operand(softmax_grads[0], 0) != f.probabilities)
      return {};
    Backward b;
    // Up from the gradient of the softmax to the gradient of the output.
    const OpId unflatten = view_.producer(view_.operand(softmax_grads[0], 1), OpKind::kReshape);
    if (unflatten == kNoOp) return {};
    const OpId dp = view_.producer(view_.operand(unflatten, 0), OpKind::kMatmul);
    if (dp == kNoOp || !is_matmul(dp, false, true) || view_.operand(dp, 1) != f.v_grouped)
      return {};
    const ValueId do_grouped = view_.operand(dp, 0);
    b.ops = {softmax_grads[0], unflatten, dp};
    if (!up_regrouped(do_grouped, kSplitHeads, &b.dout, &b.ops)) return {};
    // Down to the gradient of the scores, then to those of q and k; v's comes from the
    // probabilities.
    const OpId mask = view_.only_user(view_.result(softmax_grads[0]), OpKind::kCausalMask);
    if (mask == kNoOp || attrs(mask).f64("fill") != 0) return {};
    const OpId flatten = view_.only_user(view_.result(mask), OpKind::kReshape);
    if (flatten == kNoOp) return {};
    const OpId scale = view_.only_user(view_.result(flatten), OpKind::kScale);
    if (scale == kNoOp || attrs(scale).f64("factor") != f.scale) return {};
    const ValueId ds = view_.result(scale);
    b.ops.insert(b.ops.end(), {mask, flatten, scale});
    const OpId dq = find_matmul(ds, f.k_grouped, false, ds);
    const OpId dk = find_matmul(ds, f.q_grouped, true, ds);
    const OpId dv = find_matmul(f.probabilities_flat, do_grouped, true, f.probabilities_flat);
    if (dq == kNoOp || dk == kNoOp || dv == kNoOp) return {};
    b.ops.insert(b.ops.end(), {dq, dk, dv});
    if (!down_regrouped(view_.result(dq), &b.dq, &b.ops) ||
        !down_swapped(view_.result(dk), &b.dk, &b.ops) ||
        !down_swapped(view_.result(dv), &b.dv, &b.ops)) {
      return {};
    }
    if (!view_.closed(b.ops, std::vector<ValueId>{b.dq, b.dk, b.dv})) return {};
    b.first = *std::min_element(b.ops.begin(), b.ops.end());
    return b;
  }

 private:
  const Attrs& attrs(OpId op) const { return view_.graph().op(op).attrs; }
  const TensorType& type(ValueId v) const { return view_.graph().type(v); }
  bool is_matmul(OpId op, bool trans_a, bool trans_b) const {
    return view_.graph().op(op).operands.size() == 2 && attrs(op).flag("trans_a") == trans_a &&
           attrs(op).flag("trans_b") == trans_b;
  }

  OpId transposed_from(ValueId v, const Perm& perm) const {
    const OpId op = view_.producer(v, OpKind::kTranspose);
    return op != kNoOp && attrs(op).list("perm") == perm ? op : kNoOp;
  }
  OpId transposed_to(ValueId v, const Perm& perm) const {
    const OpId op = view_.only_user(v, OpKind::kTranspose);
    return op != kNoOp && attrs(op).list("perm") == perm ? op : kNoOp;
  }

  /// matmul(a, b){trans_a} among the users of `through`.
  OpId find_matmul(ValueId a, ValueId b, bool trans_a, ValueId through) const {
    for (OpId op : view_.users_of_kind(through, OpKind::kMatmul)) {
      if (view_.operand(op, 0) == a && view_.operand(op, 1) == b && is_matmul(op, trans_a, false))
        return op;
    }
    return kNoOp;
  }

  /// v = reshape(transpose(reshape(source), perm)).
  bool up_regrouped(ValueId v, const Perm& perm, ValueId* source, std::vector<OpId>* ops) const {
    const OpId flatten = view_.producer(v, OpKind::kReshape);
    if (flatten == kNoOp) return false;
    const OpId transpose = transposed_from(view_.operand(flatten, 0), perm);
    if (transpose == kNoOp) return false;
    const OpId split = view_.producer(view_.operand(transpose, 0), OpKind::kReshape);
    if (split == kNoOp) return false;
    *source = view_.operand(split, 0);
    ops->insert(ops->end(), {flatten, transpose, split});
    return true;
  }
  bool down_regrouped(ValueId v, ValueId* end, std::vector<OpId>* ops) const {
    const OpId split = view_.only_user(v, OpKind::kReshape);
    if (split == kNoOp) return false;
    const OpId transpose = transposed_to(view_.result(split), kMergeHeads);
    if (transpose == kNoOp) return false;
    const OpId merge = view_.only_user(view_.result(transpose), OpKind::kReshape);
    if (merge == kNoOp) return false;
    *end = view_.result(merge);
    ops->insert(ops->end(), {split, transpose, merge});
    return true;
  }
  bool down_swapped(ValueId v, ValueId* end, std::vector<OpId>* ops) const {
    const OpId transpose = transposed_to(v, kSwapTimeAndGroup);
    if (transpose == kNoOp) return false;
    *end = view_.result(transpose);
    ops->push_back(transpose);
    return true;
  }

  bool match_inputs(Forward& f) const {
    if (!up_regrouped(f.q_grouped, kSplitHeads, &f.q, &f.ops)) return false;
    const OpId k = transposed_from(f.k_grouped, kSwapTimeAndGroup);
    if (k == kNoOp || type(f.q).shape.rank() != 4) return false;
    f.k = view_.operand(k, 0);
    f.ops.push_back(k);
    return true;
  }

  bool match_output(Forward& f) const {
    const auto flattened = view_.users_of_kind(f.probabilities, OpKind::kReshape);
    if (flattened.size() != 1) return false;
    f.probabilities_flat = view_.result(flattened[0]);
    OpId values = kNoOp;
    for (OpId op : view_.users_of_kind(f.probabilities_flat, OpKind::kMatmul)) {
      if (view_.operand(op, 0) == f.probabilities_flat && is_matmul(op, false, false)) values = op;
    }
    if (values == kNoOp) return false;
    f.v_grouped = view_.operand(values, 1);
    const OpId v = transposed_from(f.v_grouped, kSwapTimeAndGroup);
    if (v == kNoOp) return false;
    f.v = view_.operand(v, 0);
    f.ops.insert(f.ops.end(), {flattened[0], values, v});
    return down_regrouped(view_.result(values), &f.out, &f.ops);
  }

  const GraphView& view_;
};

Attrs shape_attrs(const TensorType& like) {
  Attrs attrs;
  attrs.set("shape", like.shape.dims());
  return attrs;
}

}  // namespace

int32_t match_flash_attention(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  const Matcher matcher(view);
  int32_t count = 0;
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    if (graph.op(o).kind != OpKind::kSoftmax) continue;
    const auto forward = matcher.forward(o);
    if (!forward) continue;
    const auto backward = matcher.backward(*forward);
    std::vector<OpId> all = forward->ops;
    std::vector<ValueId> kept{forward->out};
    if (backward) {
      all.insert(all.end(), backward->ops.begin(), backward->ops.end());
      kept.insert(kept.end(), {backward->dq, backward->dk, backward->dv});
    }
    if (!view.closed(all, kept) || !rewriter.absorb(all)) continue;
    Attrs attrs;
    attrs.set("scale", forward->scale);
    attrs.set("causal", true);
    const int32_t attention =
        rewriter.add({OpKind::kFlashAttention,
                      {Ref::old(forward->q), Ref::old(forward->k), Ref::old(forward->v)},
                      attrs,
                      {kNoValue, kNoValue},
                      o});
    rewriter.add({OpKind::kReshape,
                  {Ref::made(attention, 0)},
                  shape_attrs(graph.type(forward->out)),
                  {forward->out},
                  o});
    if (backward) {
      const int32_t dout = rewriter.add({OpKind::kReshape,
                                         {Ref::old(backward->dout)},
                                         shape_attrs(graph.type(forward->q)),
                                         {kNoValue},
                                         backward->first});
      rewriter.add({OpKind::kFlashAttentionGrad,
                    {Ref::made(dout, 0), Ref::old(forward->q), Ref::old(forward->k),
                     Ref::old(forward->v), Ref::made(attention, 0), Ref::made(attention, 1)},
                    attrs,
                    {backward->dq, backward->dk, backward->dv},
                    backward->first});
    }
    ++count;
  }
  return count;
}

}  // namespace sgactor::graph
