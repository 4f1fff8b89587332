// Finds AdamW as build_update writes it. The scalar parts (lr / bias1, sqrt(bias2), 1 - lr * decay)
// may be shared by many parameters; the fused op computes them again, and those that nobody needs
// any more are cleaned away afterwards.
#include "graph/passes/fusion_patterns.h"

#include <optional>
#include <vector>

namespace sgactor::graph {
namespace {

struct Update {
  ValueId p = kNoValue, m = kNoValue, v = kNoValue, g = kNoValue;
  ValueId lr = kNoValue, clip = kNoValue, bias1 = kNoValue, bias2 = kNoValue;
  ValueId new_p = kNoValue, new_m = kNoValue, new_v = kNoValue;
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  std::vector<OpId> ops;
};

class Matcher {
 public:
  explicit Matcher(const GraphView& view) : view_(view) {}

  /// `sub` is the op that makes the new parameter.
  std::optional<Update> match(OpId sub) {
    Update u;
    ops_ = {sub};
    ok_ = true;
    u.new_p = view_.result(sub);
    const OpId kept = take(view_.operand(sub, 0), OpKind::kMul);
    const OpId change = take(view_.operand(sub, 1), OpKind::kDiv);
    if (!ok_) return {};
    u.p = view_.operand(kept, 0);
    match_decay(view_.operand(kept, 1), u);
    const OpId scaled_m = take(view_.operand(change, 0), OpKind::kMul);
    const OpId denominator = take(view_.operand(change, 1), OpKind::kAddScalar);
    if (!ok_) return {};
    u.eps = attrs(denominator).f64("value");
    u.new_m = view_.operand(scaled_m, 0);
    const OpId rate = look(view_.operand(scaled_m, 1), OpKind::kDiv);
    const OpId root = take(view_.operand(denominator, 0), OpKind::kDiv);
    if (!ok_) return {};
    u.bias1 = view_.operand(rate, 1);
    if (view_.operand(rate, 0) != u.lr) return {};
    const OpId root_v = take(view_.operand(root, 0), OpKind::kSqrt);
    const OpId root_bias2 = look(view_.operand(root, 1), OpKind::kSqrt);
    if (!ok_) return {};
    u.new_v = view_.operand(root_v, 0);
    u.bias2 = view_.operand(root_bias2, 0);
    if (!match_moments(u)) return {};
    u.ops = ops_;
    return u;
  }

 private:
  const Attrs& attrs(OpId op) const { return view_.graph().op(op).attrs; }

  /// Producer of `v`, which becomes part of the group.
  OpId take(ValueId v, OpKind kind) {
    const OpId op = look(v, kind);
    if (op != kNoOp) ops_.push_back(op);
    return op;
  }
  /// Producer of `v`, which stays where it is.
  OpId look(ValueId v, OpKind kind) {
    const OpId op = ok_ ? view_.producer(v, kind) : kNoOp;
    if (op == kNoOp) ok_ = false;
    return op;
  }

  void match_decay(ValueId keep, Update& u) {
    const OpId plus_one = look(keep, OpKind::kAddScalar);
    if (!ok_ || attrs(plus_one).f64("value") != 1) {
      ok_ = false;
      return;
    }
    const OpId decayed = look(view_.operand(plus_one, 0), OpKind::kScale);
    if (!ok_) return;
    u.lr = view_.operand(decayed, 0);
    u.weight_decay = -attrs(decayed).f64("factor") + 0.0;  // + 0.0: never a negative zero
  }

  /// new = scale(old, beta) + scale(x, 1 - beta); returns x.
  ValueId match_average(ValueId average, ValueId* old, double* beta) {
    const OpId sum = take(average, OpKind::kAdd);
    if (!ok_) return kNoValue;
    const OpId left = take(view_.operand(sum, 0), OpKind::kScale);
    const OpId right = take(view_.operand(sum, 1), OpKind::kScale);
    if (!ok_) return kNoValue;
    *old = view_.operand(left, 0);
    *beta = attrs(left).f64("factor");
    if (attrs(right).f64("factor") != 1 - *beta) ok_ = false;
    return view_.operand(right, 0);
  }

  bool match_moments(Update& u) {
    const ValueId gc = match_average(u.new_m, &u.m, &u.beta1);
    const ValueId gc2 = match_average(u.new_v, &u.v, &u.beta2);
    if (!ok_) return false;
    const OpId square = take(gc2, OpKind::kSquare);
    if (!ok_ || view_.operand(square, 0) != gc) return false;
    const OpId clipped = take(gc, OpKind::kMul);
    if (!ok_) return false;
    u.g = view_.operand(clipped, 0);
    u.clip = view_.operand(clipped, 1);
    return true;
  }

  const GraphView& view_;
  std::vector<OpId> ops_;
  bool ok_ = true;
};

bool scalar(const Graph& graph, ValueId v) { return graph.type(v) == TensorType{DType::kF32, {}}; }

}  // namespace

int32_t match_adamw(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  Matcher matcher(view);
  int32_t count = 0;
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    if (graph.op(o).kind != OpKind::kSub || graph.op(o).phase != Phase::kUpdate) continue;
    const auto u = matcher.match(o);
    if (!u || !scalar(graph, u->lr) || !scalar(graph, u->clip) || !scalar(graph, u->bias1) ||
        !scalar(graph, u->bias2))
      continue;
    const TensorType& type = graph.type(u->p);
    if (graph.type(u->m) != type || graph.type(u->v) != type || graph.type(u->g) != type) continue;
    if (!view.closed(u->ops, std::vector<ValueId>{u->new_p, u->new_m, u->new_v})) continue;
    if (!rewriter.absorb(u->ops)) continue;
    Attrs attrs;
    attrs.set("beta1", u->beta1);
    attrs.set("beta2", u->beta2);
    attrs.set("eps", u->eps);
    attrs.set("weight_decay", u->weight_decay);
    rewriter.add({OpKind::kAdamw,
                  {Ref::old(u->p), Ref::old(u->m), Ref::old(u->v), Ref::old(u->g), Ref::old(u->lr),
                   Ref::old(u->clip), Ref::old(u->bias1), Ref::old(u->bias2)},
                  attrs,
                  {u->new_p, u->new_m, u->new_v},
                  o});
    ++count;
  }
  return count;
}

}  // namespace sgactor::graph
