#include "graph/ir/op_table.h"
#include "kernels/reference/kernels.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

namespace sgactor::kernels::reference {
namespace {

using graph::OpKind;

struct Row {
  OpKind kind;
  Kernel kernel;
};

constexpr std::array<Row, graph::kNumOpKinds> kTable = {{
    {OpKind::kAdd, add},
    {OpKind::kSub, sub},
    {OpKind::kMul, mul},
    {OpKind::kDiv, div},
    {OpKind::kMinimum, minimum},
    {OpKind::kMaximum, maximum},
    {OpKind::kPow, pow},
    {OpKind::kNeg, neg},
    {OpKind::kExp, exp},
    {OpKind::kLog, log},
    {OpKind::kSqrt, sqrt},
    {OpKind::kRsqrt, rsqrt},
    {OpKind::kSquare, square},
    {OpKind::kCos, cos},
    {OpKind::kSin, sin},
    {OpKind::kSigmoid, sigmoid},
    {OpKind::kSilu, silu},
    {OpKind::kScale, scale},
    {OpKind::kAddScalar, add_scalar},
    {OpKind::kCast, cast},
    {OpKind::kReshape, reshape},
    {OpKind::kTranspose, transpose},
    {OpKind::kSlice, slice},
    {OpKind::kPad, pad},
    {OpKind::kConcat, concat},
    {OpKind::kBroadcast, broadcast},
    {OpKind::kConstant, constant},
    {OpKind::kReduceSum, reduce_sum},
    {OpKind::kReduceMax, reduce_max},
    {OpKind::kSumSquares, sum_squares},
    {OpKind::kTreeSum, tree_sum},
    {OpKind::kMatmul, matmul},
    {OpKind::kSoftmax, softmax},
    {OpKind::kSoftmaxGrad, softmax_grad},
    {OpKind::kSiluGrad, silu_grad},
    {OpKind::kCausalMask, causal_mask},
    {OpKind::kRmsNorm, rms_norm},
    {OpKind::kRmsNormGrad, rms_norm_grad},
    {OpKind::kRopeTable, rope_table},
    {OpKind::kRotate, rotate},
    {OpKind::kGather, gather},
    {OpKind::kScatterAdd, scatter_add},
    {OpKind::kCrossEntropy, cross_entropy},
    {OpKind::kCrossEntropyGrad, cross_entropy_grad},
    {OpKind::kAccumulate, accumulate},
    {OpKind::kPhiloxUniform, philox_uniform},
    {OpKind::kMatmulAccumulate, matmul_accumulate},
    {OpKind::kFlashAttention, flash_attention},
    {OpKind::kFlashAttentionGrad, flash_attention_grad},
    {OpKind::kSwiglu, swiglu},
    {OpKind::kSwigluGrad, swiglu_grad},
    {OpKind::kAddRmsNorm, add_rms_norm},
    {OpKind::kAddRmsNormGrad, add_rms_norm_grad},
    {OpKind::kAdamw, adamw},
    {OpKind::kLinearCrossEntropy, linear_cross_entropy},
    {OpKind::kLinearCrossEntropyGrad, linear_cross_entropy_grad},
    {OpKind::kFusedPointwise, fused_pointwise},
    {OpKind::kAllReduce, nullptr},  // channels do these
    {OpKind::kAllGather, nullptr},
    {OpKind::kReduceScatter, nullptr},
    {OpKind::kGatherShard, gather_shard},
    {OpKind::kScatterAddShard, scatter_add_shard},
    {OpKind::kCrossEntropyMax, cross_entropy_max},
    {OpKind::kCrossEntropyShard, cross_entropy_shard},
    {OpKind::kCrossEntropyCombine, cross_entropy_combine},
    {OpKind::kCrossEntropyShardGrad, cross_entropy_shard_grad},
    {OpKind::kSliceShard, slice_shard},
    {OpKind::kQuantizeF8, quantize_f8},
    {OpKind::kQuantizeF8Observed, quantize_f8_observed},
    {OpKind::kQuantizeF8Both, quantize_f8_both},
    {OpKind::kScaledMatmul, scaled_matmul},
    {OpKind::kScaledMatmulAccumulate, scaled_matmul_accumulate},
    {OpKind::kUpdateAmax, update_amax},
}};

constexpr bool table_is_in_order() {
  for (int i = 0; i < graph::kNumOpKinds; ++i) {
    if (static_cast<int>(kTable[static_cast<size_t>(i)].kind) != i) return false;
  }
  return true;
}
static_assert(table_is_in_order(), "kTable is indexed by OpKind: a row an op, in order");

bool overlap(const Tensor& a, const Tensor& b) {
  return a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

}  // namespace

Status run_op(const graph::Op& op, std::span<const Tensor> in, std::span<const Tensor> out) {
  // Results that share bytes with an operand are computed aside and copied, so that no kernel has
  // to care; a reshape in place is a no-op already.
  std::vector<Tensor> results(out.begin(), out.end());
  std::vector<std::vector<double>> aside;
  aside.reserve(out.size());
  for (Tensor& result : results) {
    for (const Tensor& operand : in) {
      if (!overlap(result, operand)) continue;
      if (op.kind == OpKind::kReshape && result.data == operand.data) continue;
      aside.emplace_back(static_cast<size_t>(result.size()));
      result.data = reinterpret_cast<std::byte*>(aside.back().data());
      break;
    }
  }
  const Kernel kernel = kTable[static_cast<size_t>(op.kind)].kernel;
  if (kernel == nullptr) {
    return unsupported(fmt::format("{} is no op of a backend", graph::op_info(op.kind).name));
  }
  if (Status s = kernel(OpCall{op, in, results}); !s.ok())
    return s.with_context(graph::op_info(op.kind).name);
  for (size_t i = 0; i < out.size(); ++i) {
    if (results[i].data != out[i].data && out[i].bytes() > 0)
      std::memcpy(out[i].data, results[i].data, static_cast<size_t>(out[i].bytes()));
  }
  return {};
}

}  // namespace sgactor::kernels::reference
