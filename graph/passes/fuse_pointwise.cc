// The small patterns of fuse_ops: products with their activation, norms with their residual, sums
// with their matmul.
#include "graph/ir/op_table.h"
#include "graph/passes/fusion_patterns.h"

#include <algorithm>
#include <map>

namespace sgactor::graph {
namespace {

bool same_segment(const Graph& graph, OpId a, OpId b) {
  return graph.op(a).segment == graph.op(b).segment && graph.op(a).phase == graph.op(b).phase;
}

/// The other operand of a two-operand op.
ValueId other(const Op& op, ValueId v) {
  return op.operands[0] == v ? op.operands[1] : op.operands[0];
}

bool equal_operand_types(const Graph& graph, OpId op) {
  return graph.type(graph.op(op).operands[0]) == graph.type(graph.op(op).operands[1]);
}

/// The matmul that makes `v` and adds to nothing yet, or kNoOp.
OpId plain_product(const GraphView& view, ValueId v) {
  const OpId matmul = view.producer(v, OpKind::kMatmul);
  return matmul == kNoOp || view.graph().op(matmul).operands.size() != 2 ? kNoOp : matmul;
}

/// A product, and the views between it and the sum that alone reads it.
struct ViewedProduct {
  OpId matmul = kNoOp;
  std::vector<OpId> ops;  ///< the matmul and the views
};

ViewedProduct product_behind(const GraphView& view, ValueId v, OpId sum) {
  ViewedProduct p;
  OpId reader = sum;
  while (view.only_user(v, view.graph().op(reader).kind) == reader) {
    p.matmul = plain_product(view, v);
    const OpId made = p.matmul != kNoOp ? p.matmul : view.producer(v, OpKind::kReshape);
    if (made == kNoOp || !same_segment(view.graph(), made, sum)) break;
    p.ops.push_back(made);
    if (p.matmul != kNoOp) return p;
    reader = made;
    v = view.operand(made, 0);
  }
  return {};
}

int64_t summed_length(const Graph& graph, OpId matmul) {
  const Op& op = graph.op(matmul);
  return graph.type(op.operands[0]).shape.dim(op.attrs.flag("trans_a") ? -2 : -1);
}

Attrs shape_attr(const Shape& shape) {
  Attrs attrs;
  attrs.set("shape", shape.dims());
  return attrs;
}

int32_t add_in_products(const GraphView& view, Rewriter& rewriter, bool forward) {
  const Graph& graph = view.graph();
  int32_t count = 0;
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    const TensorType& type = graph.type(op.results[0]);
    if ((op.phase == Phase::kForward) != forward) continue;
    if (op.kind != OpKind::kAdd || !equal_operand_types(graph, o) || !is_float(type.dtype))
      continue;
    ViewedProduct product = product_behind(view, op.operands[1], o);
    size_t other_operand = 0;
    if (const ViewedProduct first = product_behind(view, op.operands[0], o);
        first.matmul != kNoOp && (product.matmul == kNoOp || first.matmul > product.matmul)) {
      product = first;
      other_operand = 1;
    }
    if (product.matmul == kNoOp) continue;
    const OpId matmul = product.matmul;
    const TensorType& made = graph.type(view.result(matmul));
    if (made.shape.rank() != 2 || summed_length(graph, matmul) < made.shape.dim(1)) continue;
    std::vector<OpId> ops = product.ops;
    ops.push_back(o);
    if (!rewriter.absorb(ops)) continue;
    const bool viewed = made.shape != type.shape;
    Ref addend = Ref::old(op.operands[other_operand]);
    if (viewed) {
      addend = Ref::made(
          rewriter.add({OpKind::kReshape, {addend}, shape_attr(made.shape), {kNoValue}, matmul}),
          0);
    }
    const ValueId sum = view.result(o);
    const int32_t fused = rewriter.add(
        {OpKind::kMatmul,
         {Ref::old(view.operand(matmul, 0)), Ref::old(view.operand(matmul, 1)), addend},
         graph.op(matmul).attrs,
         {viewed ? kNoValue : sum},
         matmul});
    if (viewed) {
      rewriter.add(
          {OpKind::kReshape, {Ref::made(fused, 0)}, shape_attr(type.shape), {sum}, matmul});
    }
    ++count;
  }
  return count;
}

}  // namespace

int32_t match_matmul_accumulate(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  int32_t count = 0;
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    if (graph.op(o).kind != OpKind::kAccumulate) continue;
    const OpId matmul = plain_product(view, view.operand(o, 1));
    if (matmul == kNoOp || view.only_user(view.result(matmul), OpKind::kAccumulate) != o) continue;
    const ValueId accumulator = view.operand(o, 0);
    const ValueId a = view.operand(matmul, 0);
    if (graph.type(accumulator).shape.rank() != 2 ||
        graph.type(accumulator).dtype != graph.type(a).dtype || !same_segment(graph, o, matmul))
      continue;
    if (!rewriter.absorb(std::vector<OpId>{o, matmul})) continue;
    rewriter.add({OpKind::kMatmulAccumulate,
                  {Ref::old(accumulator), Ref::old(a), Ref::old(view.operand(matmul, 1))},
                  graph.op(matmul).attrs,
                  {view.result(o)},
                  o});
    ++count;
  }
  return count;
}

int32_t match_matmul_sum(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  // A product or sum that may be added into: its bytes are its own and the sum is all that reads
  // it. A sum fused by this pass stands for its value.
  std::map<ValueId, int32_t> made;
  int32_t count = 0;
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    if (op.kind != OpKind::kAdd || !equal_operand_types(graph, o)) continue;
    const TensorType& type = graph.type(view.result(o));
    if (type.shape.rank() != 2 || (type.dtype != DType::kF32 && type.dtype != DType::kF64))
      continue;
    const OpId second = plain_product(view, op.operands[1]);
    if (second == kNoOp || !same_segment(graph, o, second)) continue;
    if (view.only_user(op.operands[1], OpKind::kAdd) != o) continue;
    if (view.only_user(op.operands[0], OpKind::kAdd) != o) continue;
    const auto sum = made.find(op.operands[0]);
    const OpId first = view.producer(op.operands[0], OpKind::kMatmul);
    if (sum == made.end() && (first == kNoOp || !same_segment(graph, o, first))) continue;
    if (graph.type(view.operand(second, 0)).dtype != type.dtype) continue;
    if (!rewriter.absorb(std::vector<OpId>{o, second})) continue;
    made[view.result(o)] =
        rewriter.add({OpKind::kMatmulAccumulate,
                      {sum == made.end() ? Ref::old(op.operands[0]) : Ref::made(sum->second, 0),
                       Ref::old(view.operand(second, 0)), Ref::old(view.operand(second, 1))},
                      graph.op(second).attrs,
                      {view.result(o)},
                      o});
    ++count;
  }
  return count;
}

int32_t match_matmul_add(const GraphView& view, Rewriter& rewriter) {
  return add_in_products(view, rewriter, true);
}

int32_t match_matmul_add_gradient(const GraphView& view, Rewriter& rewriter) {
  return add_in_products(view, rewriter, false);
}

int32_t match_swiglu(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  int32_t count = 0;
  for (OpId silu = 0; silu < graph.ops().size(); ++silu) {
    if (graph.op(silu).kind != OpKind::kSilu) continue;
    const ValueId gate = view.operand(silu, 0);
    const ValueId act = view.result(silu);
    OpId product = kNoOp;
    OpId dup = kNoOp;
    bool understood = !view.is_output(act) && view.users(act).size() <= 2;
    for (OpId user : view.users_of_kind(act, OpKind::kMul)) {
      if (!equal_operand_types(graph, user)) understood = false;
      (graph.op(user).phase == Phase::kForward ? product : dup) = user;
    }
    if (!understood || product == kNoOp || view.users(act).size() != (dup == kNoOp ? 1U : 2U))
      continue;
    const ValueId up = other(graph.op(product), act);
    if (dup == kNoOp) {
      if (!rewriter.absorb(std::vector<OpId>{silu, product})) continue;
      rewriter.add(
          {OpKind::kSwiglu, {Ref::old(gate), Ref::old(up)}, {}, {view.result(product)}, product});
      ++count;
      continue;
    }
    // Backward: dup = dy * silu(gate); dgate = silu_grad(gate, dy * up).
    const ValueId dy = other(graph.op(dup), act);
    OpId dact = kNoOp;
    for (OpId user : view.users_of_kind(dy, OpKind::kMul)) {
      if (user != dup && other(graph.op(user), dy) == up) dact = user;
    }
    if (dact == kNoOp) continue;
    const OpId dgate = view.only_user(view.result(dact), OpKind::kSiluGrad);
    if (dgate == kNoOp || view.operand(dgate, 0) != gate) continue;
    if (!rewriter.absorb(std::vector<OpId>{silu, product, dup, dact, dgate})) continue;
    rewriter.add(
        {OpKind::kSwiglu, {Ref::old(gate), Ref::old(up)}, {}, {view.result(product)}, product});
    rewriter.add({OpKind::kSwigluGrad,
                  {Ref::old(gate), Ref::old(up), Ref::old(dy)},
                  {},
                  {view.result(dgate), view.result(dup)},
                  std::min(dup, dgate)});
    ++count;
  }
  return count;
}

int32_t match_add_rms_norm(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  int32_t count = 0;
  for (OpId norm = 0; norm < graph.ops().size(); ++norm) {
    if (graph.op(norm).kind != OpKind::kRmsNorm) continue;
    const OpId add = view.producer(view.operand(norm, 0), OpKind::kAdd);
    if (add == kNoOp || !same_segment(graph, add, norm) || !equal_operand_types(graph, add))
      continue;
    if (!rewriter.absorb(std::vector<OpId>{add, norm})) continue;
    rewriter.add({OpKind::kAddRmsNorm,
                  {Ref::old(view.operand(add, 0)), Ref::old(view.operand(add, 1)),
                   Ref::old(view.operand(norm, 1))},
                  graph.op(norm).attrs,
                  {view.result(add), view.result(norm, 0), view.result(norm, 1)},
                  norm});
    ++count;
  }
  return count;
}

int32_t match_add_rms_norm_grad(const GraphView& view, Rewriter& rewriter) {
  const Graph& graph = view.graph();
  int32_t count = 0;
  for (OpId grad = 0; grad < graph.ops().size(); ++grad) {
    if (graph.op(grad).kind != OpKind::kRmsNormGrad) continue;
    const ValueId dx = view.result(grad, 0);
    const OpId add = view.only_user(dx, OpKind::kAdd);
    if (add == kNoOp || !same_segment(graph, add, grad) || !equal_operand_types(graph, add))
      continue;
    if (!rewriter.absorb(std::vector<OpId>{add, grad})) continue;
    const Op& op = graph.op(grad);
    rewriter.add({OpKind::kAddRmsNormGrad,
                  {Ref::old(op.operands[0]), Ref::old(other(graph.op(add), dx)),
                   Ref::old(op.operands[1]), Ref::old(op.operands[2]), Ref::old(op.operands[3])},
                  op.attrs,
                  {view.result(add), view.result(grad, 1)},
                  grad});
    ++count;
  }
  return count;
}

}  // namespace sgactor::graph
