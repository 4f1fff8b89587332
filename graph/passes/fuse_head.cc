// The last matmul with the loss.
#include "graph/ir/op_table.h"
#include "graph/passes/fusion_patterns.h"

#include <map>
#include <optional>

namespace sgactor::graph {
namespace {

/// The ops of a head, as differentiate and accumulate_microbatches leave it.
struct Head {
  OpId logits = kNoOp, loss = kNoOp;                             // forward
  OpId dlogits = kNoOp, dx = kNoOp, dw = kNoOp, sum_dw = kNoOp;  // backward
};

class HeadMatcher {
 public:
  HeadMatcher(const GraphView& view, Rewriter& rewriter)
      : view_(view), graph_(view.graph()), rewriter_(rewriter) {}

  bool fuse(OpId cross_entropy);

 private:
  [[nodiscard]] bool is_matmul(OpId op, bool trans_a, bool trans_b) const {
    return op != kNoOp && graph_.op(op).operands.size() == 2 &&
           graph_.op(op).attrs.flag("trans_a") == trans_a &&
           graph_.op(op).attrs.flag("trans_b") == trans_b;
  }
  [[nodiscard]] std::optional<Head> match(OpId cross_entropy) const;
  [[nodiscard]] bool match_backward(Head& head) const;
  bool fuse_forward(const Head& head);
  bool fuse_all(const Head& head);
  /// Can `v` be had before the backward pass: a scalar made of numbers of the run and constants.
  [[nodiscard]] ValueId gathered_from(ValueId v) const;
  [[nodiscard]] bool is_same_weight(ValueId a, ValueId b) const;
  [[nodiscard]] bool is_accumulator(ValueId v) const;
  [[nodiscard]] bool is_known_scalar(ValueId v) const;
  Ref early(ValueId v, OpId anchor);

  const GraphView& view_;
  const Graph& graph_;
  Rewriter& rewriter_;
  std::map<ValueId, Ref> early_;
};

std::optional<Head> HeadMatcher::match(OpId cross_entropy) const {
  Head h;
  h.loss = cross_entropy;
  h.logits = view_.producer(view_.operand(cross_entropy, 0), OpKind::kMatmul);
  if (!is_matmul(h.logits, false, true)) return std::nullopt;
  if (graph_.type(view_.result(h.logits)).shape.rank() != 2) return std::nullopt;
  const auto lse_users = view_.users(view_.result(cross_entropy, 1));
  if (lse_users.empty() && !view_.is_output(view_.result(cross_entropy, 1))) return h;
  if (!match_backward(h)) return std::nullopt;
  return h;
}

bool HeadMatcher::match_backward(Head& h) const {
  const ValueId logits = view_.result(h.logits);
  h.dlogits = view_.only_user(view_.result(h.loss, 1), OpKind::kCrossEntropyGrad);
  if (h.dlogits == kNoOp || view_.operand(h.dlogits, 0) != logits) return false;
  if (!is_known_scalar(view_.operand(h.dlogits, 3))) return false;
  const ValueId x = view_.operand(h.logits, 0);
  const ValueId w = view_.operand(h.logits, 1);
  const ValueId dlogits = view_.result(h.dlogits);
  for (OpId user : view_.users_of_kind(dlogits, OpKind::kMatmul)) {
    if (view_.operand(user, 0) != dlogits) return false;
    if (is_same_weight(view_.operand(user, 1), w) && is_matmul(user, false, false)) h.dx = user;
    if (view_.operand(user, 1) == x && is_matmul(user, true, false)) h.dw = user;
  }
  if (h.dx == kNoOp || h.dw == kNoOp) return false;
  h.sum_dw = view_.only_user(view_.result(h.dw), OpKind::kAccumulate);
  return h.sum_dw != kNoOp && is_accumulator(view_.operand(h.sum_dw, 0)) &&
         graph_.type(view_.operand(h.sum_dw, 0)).dtype ==
             graph_.type(view_.result(h.loss, 0)).dtype;
}

/// What a value is a view or a gathered whole of.
ValueId HeadMatcher::gathered_from(ValueId v) const {
  for (OpId producer = graph_.value(v).producer; producer != kNoOp;
       producer = graph_.value(v).producer) {
    const Op& op = graph_.op(producer);
    if (op.kind == OpKind::kAllGather) return op.operands[graph_.value(v).result];
    if (op.kind != OpKind::kReshape) break;
    v = op.operands[0];
  }
  return v;
}

/// The same value, or the same parameter gathered once more for the backward.
bool HeadMatcher::is_same_weight(ValueId a, ValueId b) const {
  return a == b || (graph_.type(a) == graph_.type(b) && gathered_from(a) == gathered_from(b));
}

/// An input, or the zeros that a gradient starts from where one micro-batch is all.
bool HeadMatcher::is_accumulator(ValueId v) const {
  const OpId producer = graph_.value(v).producer;
  return producer == kNoOp || graph_.op(producer).kind == OpKind::kConstant;
}

bool HeadMatcher::is_known_scalar(ValueId v) const {
  if (graph_.type(v).shape.rank() != 0) return false;
  const OpId producer = graph_.value(v).producer;
  if (producer == kNoOp) return graph_.inputs()[graph_.value(v).result].role == Role::kScalar;
  const Op& op = graph_.op(producer);
  if (op.phase == Phase::kForward) return true;
  if (op.kind != OpKind::kConstant && !op_info(op.kind).pointwise) return false;
  for (ValueId operand : op.operands) {
    if (!is_known_scalar(operand)) return false;
  }
  return true;
}

/// A copy of the backward ops that make `v`, at `anchor`.
Ref HeadMatcher::early(ValueId v, OpId anchor) {
  const OpId producer = graph_.value(v).producer;
  if (producer == kNoOp || graph_.op(producer).phase == Phase::kForward) return Ref::old(v);
  if (const auto known = early_.find(v); known != early_.end()) return known->second;
  const Op& op = graph_.op(producer);
  Replacement copy{op.kind, {}, op.attrs, {kNoValue}, anchor};
  for (ValueId operand : op.operands) copy.operands.push_back(early(operand, anchor));
  const Ref made = Ref::made(rewriter_.add(std::move(copy)), 0);
  early_.emplace(v, made);
  return made;
}

bool HeadMatcher::fuse_forward(const Head& h) {
  const std::vector<OpId> all = {h.logits, h.loss};
  const std::vector<ValueId> kept = {view_.result(h.loss, 0)};
  if (!view_.closed(all, kept) || !rewriter_.absorb(all)) return false;
  rewriter_.add({OpKind::kLinearCrossEntropy,
                 {Ref::old(view_.operand(h.logits, 0)), Ref::old(view_.operand(h.logits, 1)),
                  Ref::old(view_.operand(h.loss, 1))},
                 {},
                 {kept[0], kNoValue},
                 h.loss});
  return true;
}

bool HeadMatcher::fuse_all(const Head& h) {
  const std::vector<OpId> all = {h.logits, h.loss, h.dlogits, h.dx, h.dw, h.sum_dw};
  const std::vector<ValueId> kept = {view_.result(h.sum_dw), view_.result(h.dx),
                                     view_.result(h.loss, 0)};
  if (!view_.closed(all, kept) || !rewriter_.absorb(all)) return false;
  rewriter_.add({OpKind::kLinearCrossEntropyGrad,
                 {early(view_.operand(h.sum_dw, 0), h.loss), Ref::old(view_.operand(h.logits, 0)),
                  Ref::old(view_.operand(h.logits, 1)), Ref::old(view_.operand(h.loss, 1)),
                  early(view_.operand(h.dlogits, 3), h.loss)},
                 {},
                 kept,
                 h.loss});
  return true;
}

bool HeadMatcher::fuse(OpId cross_entropy) {
  const auto head = match(cross_entropy);
  if (!head) return false;
  return head->dlogits == kNoOp ? fuse_forward(*head) : fuse_all(*head);
}

}  // namespace

int32_t match_linear_cross_entropy(const GraphView& view, Rewriter& rewriter) {
  HeadMatcher matcher(view, rewriter);
  int32_t count = 0;
  for (OpId o = 0; o < view.graph().ops().size(); ++o) {
    if (view.graph().op(o).kind == OpKind::kCrossEntropy && matcher.fuse(o)) ++count;
  }
  return count;
}

}  // namespace sgactor::graph
