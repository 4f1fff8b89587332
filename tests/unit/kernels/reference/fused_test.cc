// A fused op is the composition that it replaces.
#include "graph/base/philox.h"
#include "tests/unit/kernels/reference/run_op.h"

#include <cmath>
#include <limits>

namespace sgactor::kernels {
namespace {

using graph::Builder;
using graph::Graph;
using graph::OpKind;
using graph::Role;
using graph::ValueId;

Row random_row(int64_t n, uint64_t seed) {
  const PhiloxStream stream{seed, 1};
  Row row;
  for (int64_t i = 0; i < n; ++i) row.push_back((2 * stream.uniform(static_cast<uint64_t>(i))) - 1);
  return row;
}

/// Two ways to compute the same results from the same inputs.
class TwoWays {
 public:
  ValueId input(Shape shape) {
    inputs_.push_back(random_row(shape.num_elements(), inputs_.size()));
    return b_.input({DType::kF64, std::move(shape)}, Role::kActivation,
                    numbered("x", inputs_.size()));
  }
  Builder& builder() { return b_; }
  void expect_equal(ValueId fused, ValueId composed) {
    b_.output(fused, Role::kActivation, numbered("y", g_.outputs().size()));
    b_.output(composed, Role::kActivation, numbered("y", g_.outputs().size()));
  }
  void run() {
    ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();
    const Result<std::vector<Row>> got = run_reference(g_, inputs_);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    for (size_t i = 0; i < got->size(); i += 2) {
      SCOPED_TRACE(numbered("result ", i / 2));
      expect_near((*got)[i], (*got)[i + 1], 1e-13);
    }
  }

 private:
  Graph g_;
  Builder b_{g_};
  std::vector<Row> inputs_;
};

/// Attention as models write it: heads of a group stacked on the time dim, one matmul a group.
/// q[B, T, H, K], k and v[B, T, G, K].
ValueId composed_attention(Builder& b, ValueId q, ValueId k, ValueId v, double scale, bool causal) {
  const Shape qs = b.type(q).shape;
  const int64_t B = qs.dim(0);
  const int64_t T = qs.dim(1);
  const int64_t H = qs.dim(2);
  const int64_t K = qs.dim(3);
  const int64_t G = b.type(k).shape.dim(2);
  const int64_t R = H / G;
  const ValueId q_heads =
      b.reshape(b.transpose(b.reshape(q, {B, T, G, R, K}), {0, 2, 3, 1, 4}), {B, G, R * T, K});
  const ValueId k_heads = b.transpose(k, {0, 2, 1, 3});
  const ValueId v_heads = b.transpose(v, {0, 2, 1, 3});
  ValueId scores = b.scale(b.matmul(q_heads, k_heads, false, true), scale);
  scores = b.reshape(scores, {B, G, R, T, T});
  if (causal) scores = b.causal_mask(scores, -std::numeric_limits<double>::infinity());
  const ValueId weights = b.reshape(b.softmax(scores), {B, G, R * T, T});
  const ValueId out = b.reshape(b.matmul(weights, v_heads), {B, G, R, T, K});
  return b.reshape(b.transpose(out, {0, 3, 1, 2, 4}), {B, T, H, K});
}

TEST(ReferenceFused, FlashAttentionIsAttention) {
  for (const bool causal : {true, false}) {
    TwoWays t;
    Builder& b = t.builder();
    const ValueId q = t.input({2, 5, 6, 4});
    const ValueId k = t.input({2, 5, 2, 4});
    const ValueId v = t.input({2, 5, 2, 4});
    const auto fused =
        b.op(OpKind::kFlashAttention, {q, k, v}, make_attrs({{"scale", 0.5}, {"causal", causal}}));
    t.expect_equal(fused[0], composed_attention(b, q, k, v, 0.5, causal));
    t.run();
  }
}

TEST(ReferenceFused, FlashAttentionKeepsTheLogSumExp) {
  // One query, one head, two keys with scores 1 and 2.
  const Operand q{{1, 2, 1, 1}, {0, 1}};
  const Operand k{{1, 2, 1, 1}, {1, 2}};
  const Result<std::vector<Row>> got =
      run_op(OpKind::kFlashAttention, {q, k, k}, make_attrs({{"scale", 1.0}, {"causal", true}}));
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  expect_near((*got)[1], {0, std::log(std::exp(1) + std::exp(2))});
}

TEST(ReferenceFused, SwigluIsSiluTimesUp) {
  TwoWays t;
  Builder& b = t.builder();
  const ValueId gate = t.input({3, 4});
  const ValueId up = t.input({3, 4});
  const ValueId dy = t.input({3, 4});
  t.expect_equal(b.op1(OpKind::kSwiglu, {gate, up}), b.mul(b.silu(gate), up));
  const auto grads = b.op(OpKind::kSwigluGrad, {gate, up, dy});
  t.expect_equal(grads[0], b.op1(OpKind::kSiluGrad, {gate, b.mul(dy, up)}));
  t.expect_equal(grads[1], b.mul(dy, b.silu(gate)));
  t.run();
}

TEST(ReferenceFused, AddRmsNormIsAddThenRmsNorm) {
  TwoWays t;
  Builder& b = t.builder();
  const ValueId x = t.input({3, 4});
  const ValueId r = t.input({3, 4});
  const ValueId w = t.input({4});
  const ValueId dy = t.input({3, 4});
  const ValueId ds = t.input({3, 4});
  const auto fused = b.op(OpKind::kAddRmsNorm, {x, r, w}, make_attrs({{"eps", 1e-5}}));
  const ValueId s = b.add(x, r);
  const auto [y, rstd] = b.rms_norm(s, w, 1e-5);
  t.expect_equal(fused[0], s);
  t.expect_equal(fused[1], y);
  t.expect_equal(fused[2], rstd);
  const auto fused_grad = b.op(OpKind::kAddRmsNormGrad, {dy, ds, s, w, rstd});
  const auto grad = b.op(OpKind::kRmsNormGrad, {dy, s, w, rstd});
  t.expect_equal(fused_grad[0], b.add(grad[0], ds));
  t.expect_equal(fused_grad[1], grad[1]);
  t.run();
}

TEST(ReferenceFused, LinearCrossEntropyIsMatmulThenCrossEntropy) {
  TwoWays t;
  Builder& b = t.builder();
  const ValueId acc = t.input({4, 2});
  const ValueId x = t.input({3, 2});
  const ValueId w = t.input({4, 2});
  const ValueId dloss = t.input({});
  // Targets 3, -1 (not counted), 0.
  const TensorType one{DType::kI32, {1}};
  const ValueId targets =
      b.concat({b.constant(3, one), b.constant(-1, one), b.constant(0, one)}, 0);
  const ValueId logits = b.matmul(x, w, false, true);
  const auto [loss, lse] = b.cross_entropy(logits, targets);
  const auto forward = b.op(OpKind::kLinearCrossEntropy, {x, w, targets});
  t.expect_equal(forward[0], loss);
  t.expect_equal(forward[1], lse);
  // A copy, since the fused op takes its accumulator away.
  const auto all = b.op(OpKind::kLinearCrossEntropyGrad, {b.scale(acc, 1), x, w, targets, dloss});
  const ValueId dlogits = b.op1(OpKind::kCrossEntropyGrad, {logits, targets, lse, dloss});
  t.expect_equal(all[0], b.add(acc, b.matmul(dlogits, x, true, false)));
  t.expect_equal(all[1], b.matmul(dlogits, w));
  t.expect_equal(all[2], loss);
  t.run();
}

TEST(ReferenceFused, FusedPointwiseIsItsInstructions) {
  TwoWays t;
  Builder& b = t.builder();
  const ValueId x = t.input({3, 4});
  const ValueId row = t.input({4});
  const ValueId number = t.input({});
  const ValueId fused = b.op1(
      OpKind::kFusedPointwise, {x, row, number},
      make_attrs({{"program", std::string("mul 0 1; sigmoid 3; sub 4 2; scale 5 0.1; add 6 3")}}));
  const ValueId product = b.mul(x, row);
  t.expect_equal(fused,
                 b.add(b.scale(b.sub(b.unary(OpKind::kSigmoid, product), number), 0.1), product));
  t.run();
}

TEST(ReferenceFused, MatmulAccumulateIsMatmulThenAccumulate) {
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      TwoWays t;
      Builder& b = t.builder();
      const ValueId acc = t.input({3, 4});
      const ValueId a = t.input(trans_a ? Shape{5, 3} : Shape{3, 5});
      const ValueId w = t.input(trans_b ? Shape{4, 5} : Shape{5, 4});
      // A copy, since the fused op takes its accumulator away.
      const ValueId spent = b.scale(acc, 1);
      t.expect_equal(b.op1(OpKind::kMatmulAccumulate, {spent, a, w},
                           make_attrs({{"trans_a", trans_a}, {"trans_b", trans_b}})),
                     b.add(acc, b.matmul(a, w, trans_a, trans_b)));
      t.run();
    }
  }
}

TEST(ReferenceFused, AdamwIsPyTorchsStep) {
  // Third step with beta 0.9, 0.95; weight decay before the step, as torch.optim.AdamW does.
  const Operand lr{{}, {0.01}};
  expect_op(OpKind::kAdamw,
            {{{1}, {0.5}},
             {{1}, {0.1}},
             {{1}, {0.04}},
             {{1}, {2}},
             lr,
             {{}, {0.5}},
             {{}, {0.2709999999999999}},
             {{}, {0.1426250000000001}}},
            make_attrs({{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}),
            {{0.4905743305933792}, {0.19}, {0.088}});
}

TEST(ReferenceFused, AccumulateAdds) {
  expect_op(OpKind::kAccumulate, {{{2}, {1, 2}}, {{2}, {10, 20}, DType::kBF16}}, {}, {{11, 22}});
}

}  // namespace
}  // namespace sgactor::kernels
