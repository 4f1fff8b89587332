#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "tests/bench/kernels/bench_rig.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <utility>

namespace sgactor::bench {
namespace {

using graph::Attrs;
using graph::Builder;
using graph::Graph;
using graph::OpKind;
using graph::Role;
using graph::ValueId;

TensorType f32(std::vector<int64_t> dims) { return {DType::kF32, Shape(std::move(dims))}; }

OpBench single(std::string name, const std::vector<TensorType>& operands, OpKind kind,
               const Attrs& attrs = {}) {
  OpBench bench{.name = std::move(name)};
  Builder b(bench.graph);
  b.set_segment("bench");
  std::vector<ValueId> values;
  for (const TensorType& t : operands) {
    values.push_back(b.input(t, Role::kActivation, fmt::format("x{}", values.size())));
  }
  for (ValueId v : b.op(kind, values, attrs)) {
    b.output(v, Role::kActivation, fmt::format("y{}", bench.graph.outputs().size()));
  }
  if (!b.status().ok()) {
    fmt::print(stderr, "{}: {}\n", bench.name, b.status().to_string());
    std::exit(1);
  }
  bench.flops = graph::op_flops(bench.graph, bench.graph.op(0));
  bench.bytes = static_cast<double>(graph::op_bytes(bench.graph, bench.graph.op(0)));
  return bench;
}

OpBench matmul(const std::string& name, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
               bool accumulate) {
  Attrs attrs;
  attrs.set("trans_a", trans_a);
  attrs.set("trans_b", trans_b);
  const TensorType a = trans_a ? f32({k, m}) : f32({m, k});
  const TensorType b = trans_b ? f32({n, k}) : f32({k, n});
  const std::string label = fmt::format("{} {}x{}x{} {}{}{}", name, m, n, k, trans_a ? 'T' : 'N',
                                        trans_b ? 'T' : 'N', accumulate ? "+" : "");
  if (accumulate) return single(label, {f32({m, n}), a, b}, OpKind::kMatmulAccumulate, attrs);
  return single(label, {a, b}, OpKind::kMatmul, attrs);
}

void add_matmuls(std::vector<OpBench>& out, int64_t tokens) {
  constexpr int64_t D = 288, F = 768, V = 32000;
  out.push_back(matmul("q", tokens, D, D, false, true, false));
  out.push_back(matmul("q dx", tokens, D, D, false, false, false));
  out.push_back(matmul("q dx+", tokens, D, D, false, false, true));
  out.push_back(matmul("q dw", D, D, tokens, true, false, true));
  // What q, k and v would be as one product of one weight (decision 0007).
  out.push_back(matmul("qkv", tokens, 3 * D, D, false, true, false));
  out.push_back(matmul("qkv dx", tokens, D, 3 * D, false, false, false));
  out.push_back(matmul("qkv dw", 3 * D, D, tokens, true, false, true));
  out.push_back(matmul("up", tokens, F, D, false, true, false));
  out.push_back(matmul("up dx", tokens, D, F, false, false, false));
  out.push_back(matmul("up dw", F, D, tokens, true, false, true));
  out.push_back(matmul("down", tokens, D, F, false, true, false));
  out.push_back(matmul("head", tokens, V, D, false, true, false));
  out.push_back(matmul("head dx", tokens, D, V, false, false, false));
  out.push_back(matmul("head dw", V, D, tokens, true, false, true));
}

}  // namespace

std::vector<OpBench> llama_ops(int64_t batch, int64_t seq_len) {
  constexpr int64_t D = 288, F = 768, V = 32000, H = 6, K = 48;
  const int64_t tokens = batch * seq_len;
  std::vector<OpBench> out;
  add_matmuls(out, tokens);
  Attrs attention;
  attention.set("scale", 1.0 / std::sqrt(double{K}));
  attention.set("causal", true);
  const TensorType q = f32({batch, seq_len, H, K});
  const TensorType lse = f32({batch, H, seq_len});
  out.push_back(single("flash_attention", {q, q, q}, OpKind::kFlashAttention, attention));
  out.push_back(
      single("flash_attention_grad", {q, q, q, q, q, lse}, OpKind::kFlashAttentionGrad, attention));
  Attrs eps;
  eps.set("eps", 1e-5);
  const TensorType x = f32({tokens, D});
  out.push_back(single("add_rms_norm", {x, x, f32({D})}, OpKind::kAddRmsNorm, eps));
  out.push_back(
      single("add_rms_norm_grad", {x, x, x, f32({D}), f32({tokens})}, OpKind::kAddRmsNormGrad));
  const TensorType wide = f32({tokens, F});
  out.push_back(single("swiglu", {wide, wide}, OpKind::kSwiglu));
  out.push_back(single("swiglu_grad", {wide, wide, wide}, OpKind::kSwigluGrad));
  out.push_back(single("add", {wide, wide}, OpKind::kAdd));
  Attrs inverse;
  inverse.set("inverse", false);
  const TensorType table = f32({seq_len, K / 2});
  out.push_back(single("rotate", {q, table, table}, OpKind::kRotate, inverse));
  Attrs perm;
  perm.set("perm", std::vector<int64_t>{0, 2, 1, 3});
  out.push_back(single("transpose 0213", {q}, OpKind::kTranspose, perm));
  perm.set("perm", std::vector<int64_t>{1, 0});
  out.push_back(single("transpose 10", {wide}, OpKind::kTranspose, perm));
  const TensorType logits = f32({tokens, V});
  const TensorType targets{DType::kI32, Shape{tokens}};
  out.push_back(single("cross_entropy", {logits, targets}, OpKind::kCrossEntropy));
  out.push_back(single("cross_entropy_grad", {logits, targets, f32({tokens}), f32({})},
                       OpKind::kCrossEntropyGrad));
  out.push_back(single("gather", {f32({V, D}), targets}, OpKind::kGather));
  Attrs rows;
  rows.set("rows", V);
  out.push_back(single("scatter_add", {targets, x}, OpKind::kScatterAdd, rows));
  Attrs adam;
  for (const auto& [key, value] :
       {std::pair{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}) {
    adam.set(key, value);
  }
  const TensorType w = f32({V, D});
  const TensorType s = f32({});
  out.push_back(single("adamw", {w, w, w, w, s, s, s, s}, OpKind::kAdamw, adam));
  Attrs chunk;
  chunk.set("chunk", int64_t{65536});
  out.push_back(single("sum_squares", {w}, OpKind::kSumSquares, chunk));
  return out;
}

}  // namespace sgactor::bench
