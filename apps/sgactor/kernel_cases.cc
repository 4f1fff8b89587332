#include "apps/sgactor/kernel_cases.h"

#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace sgactor::apps {
namespace {

using graph::Attrs;
using graph::Builder;
using graph::OpKind;
using graph::Role;
using graph::ValueId;

TensorType f32(std::vector<int64_t> dims) { return {DType::kF32, Shape(std::move(dims))}; }

/// Collects cases until one is wrong.
class Cases {
 public:
  Cases(const KernelDims& dims, DType dtype) : dims_(dims), dtype_(dtype) {}

  void single(std::string name, const std::vector<TensorType>& operands, OpKind kind,
              const Attrs& attrs = {}) {
    KernelCase out;
    out.name = std::move(name);
    Builder b(out.graph);
    b.set_segment("bench");
    std::vector<ValueId> values;
    for (const TensorType& t : operands) {
      values.push_back(b.input(t, Role::kActivation, fmt::format("x{}", values.size())));
    }
    for (const ValueId v : b.op(kind, values, attrs)) {
      b.output(v, Role::kActivation, fmt::format("y{}", out.graph.outputs().size()));
    }
    if (!b.status().ok()) {
      if (status_.ok()) status_ = b.status().with_context(out.name);
      return;
    }
    out.flops = graph::op_flops(out.graph, out.graph.op(0));
    out.bytes = static_cast<double>(graph::op_bytes(out.graph, out.graph.op(0)));
    // Of the table only the rows that are named are read.
    if (kind == OpKind::kGather) {
      const TensorType& rows = out.graph.type(out.graph.op(0).results[0]);
      out.bytes = static_cast<double>(2 * rows.bytes() + operands[1].bytes());
    }
    out.is_product = kind == OpKind::kMatmul || kind == OpKind::kMatmulAccumulate;
    cases_.push_back(std::move(out));
  }

  /// `form`: two letters as BLAS has them, "+" behind where the product is added to its result.
  void product(const std::string& name, int64_t m, int64_t n, int64_t k, const std::string& form) {
    const bool trans_a = form[0] == 'T';
    const bool trans_b = form[1] == 'T';
    Attrs attrs;
    attrs.set("trans_a", trans_a);
    attrs.set("trans_b", trans_b);
    const TensorType a{dtype_, trans_a ? Shape{k, m} : Shape{m, k}};
    const TensorType b{dtype_, trans_b ? Shape{n, k} : Shape{k, n}};
    const std::string label = fmt::format("{} {}x{}x{} {}", name, m, n, k, form);
    if (form.ends_with('+')) {
      single(label, {f32({m, n}), a, b}, OpKind::kMatmulAccumulate, attrs);
    } else {
      single(label, {a, b}, OpKind::kMatmul, attrs);
    }
  }

  void add_products(int64_t tokens) {
    const int64_t D = dims_.hidden, F = dims_.feed_forward, V = dims_.vocabulary;
    product("q", tokens, D, D, "NT");
    product("q dx", tokens, D, D, "NN");
    if (dtype_ == DType::kF32) product("q dx+", tokens, D, D, "NN+");
    product("q dw", D, D, tokens, "TN+");
    // What q, k and v would be as one product of one weight (decision 0007).
    product("qkv", tokens, 3 * D, D, "NT");
    product("qkv dx", tokens, D, 3 * D, "NN");
    product("qkv dw", 3 * D, D, tokens, "TN+");
    product("up", tokens, F, D, "NT");
    product("up dx", tokens, D, F, "NN");
    product("up dw", F, D, tokens, "TN+");
    product("down", tokens, D, F, "NT");
    product("head", tokens, V, D, "NT");
    product("head dx", tokens, D, V, "NN");
    product("head dw", V, D, tokens, "TN+");
  }

  void add_layer(int64_t batch, int64_t seq_len) {
    const int64_t tokens = batch * seq_len;
    Attrs attention;
    attention.set("scale", 1.0 / std::sqrt(static_cast<double>(dims_.head_dim)));
    attention.set("causal", true);
    const TensorType heads = f32({batch, seq_len, dims_.heads, dims_.head_dim});
    const TensorType q{dtype_, heads.shape};
    const TensorType lse = f32({batch, dims_.heads, seq_len});
    single("flash_attention", {q, q, q}, OpKind::kFlashAttention, attention);
    single("flash_attention_grad", {q, q, q, q, q, lse}, OpKind::kFlashAttentionGrad, attention);
    Attrs eps;
    eps.set("eps", 1e-5);
    const TensorType x = f32({tokens, dims_.hidden});
    const TensorType weight = f32({dims_.hidden});
    single("add_rms_norm", {x, x, weight}, OpKind::kAddRmsNorm, eps);
    single("add_rms_norm_grad", {x, x, x, weight, f32({tokens})}, OpKind::kAddRmsNormGrad);
    const TensorType wide = f32({tokens, dims_.feed_forward});
    single("swiglu", {wide, wide}, OpKind::kSwiglu);
    single("swiglu_grad", {wide, wide, wide}, OpKind::kSwigluGrad);
    single("add", {wide, wide}, OpKind::kAdd);
    Attrs inverse;
    inverse.set("inverse", false);
    const TensorType table = f32({seq_len, dims_.head_dim / 2});
    single("rotate", {heads, table, table}, OpKind::kRotate, inverse);
    Attrs perm;
    perm.set("perm", std::vector<int64_t>{0, 2, 1, 3});
    single("transpose 0213", {heads}, OpKind::kTranspose, perm);
    perm.set("perm", std::vector<int64_t>{1, 0});
    single("transpose 10", {wide}, OpKind::kTranspose, perm);
  }

  void add_head(int64_t tokens) {
    const TensorType logits = f32({tokens, dims_.vocabulary});
    const TensorType targets{DType::kI32, Shape{tokens}};
    const TensorType w = f32({dims_.vocabulary, dims_.hidden});
    const TensorType s = f32({});
    single("cross_entropy", {logits, targets}, OpKind::kCrossEntropy);
    single("cross_entropy_grad", {logits, targets, f32({tokens}), s}, OpKind::kCrossEntropyGrad);
    single("gather", {w, targets}, OpKind::kGather);
    Attrs rows;
    rows.set("rows", dims_.vocabulary);
    single("scatter_add", {targets, f32({tokens, dims_.hidden})}, OpKind::kScatterAdd, rows);
    Attrs adam;
    for (const auto& [key, value] :
         {std::pair{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}) {
      adam.set(key, value);
    }
    single("adamw", {w, w, w, w, s, s, s, s}, OpKind::kAdamw, adam);
    Attrs chunk;
    chunk.set("chunk", int64_t{65536});
    single("sum_squares", {w}, OpKind::kSumSquares, chunk);
  }

  Result<std::vector<KernelCase>> take() {
    SGA_TRY(status_);
    return std::move(cases_);
  }
  Result<KernelCase> take_one() {
    SGA_TRY(status_);
    return std::move(cases_.front());
  }

 private:
  KernelDims dims_;
  DType dtype_;
  std::vector<KernelCase> cases_;
  Status status_;
};

}  // namespace

Result<std::vector<KernelCase>> llama_kernels(int64_t batch, int64_t seq_len,
                                              const KernelDims& dims, DType dtype) {
  Cases cases(dims, dtype);
  cases.add_products(batch * seq_len);
  cases.add_layer(batch, seq_len);
  cases.add_head(batch * seq_len);
  return cases.take();
}

Result<KernelCase> product_kernel(int64_t m, int64_t n, int64_t k, DType dtype) {
  Cases cases({}, dtype);
  cases.product("matmul", m, n, k, "NT");
  return cases.take_one();
}

Result<KernelCase> add_kernel(int64_t elements) {
  Cases cases({}, DType::kF32);
  cases.single("add", {f32({elements}), f32({elements})}, OpKind::kAdd);
  return cases.take_one();
}

}  // namespace sgactor::apps
