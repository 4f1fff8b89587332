#include "kernels/cpu/lowering.h"

#include <array>

namespace sgactor::kernels::cpu {
namespace {

using graph::OpKind;

struct Row {
  OpKind kind;
  LowerFn lower;
};

// The ops that this backend runs, one row an op, in the order of OpKind.
constexpr Row kRows[] = {
    {OpKind::kAdd, lower_binary},
    {OpKind::kSub, lower_binary},
    {OpKind::kMul, lower_binary},
    {OpKind::kDiv, lower_binary},
    {OpKind::kMinimum, lower_binary},
    {OpKind::kMaximum, lower_binary},
    {OpKind::kPow, lower_binary},
    {OpKind::kNeg, lower_unary},
    {OpKind::kExp, lower_unary},
    {OpKind::kLog, lower_unary},
    {OpKind::kSqrt, lower_unary},
    {OpKind::kRsqrt, lower_unary},
    {OpKind::kSquare, lower_unary},
    {OpKind::kCos, lower_unary},
    {OpKind::kSin, lower_unary},
    {OpKind::kSigmoid, lower_unary},
    {OpKind::kSilu, lower_unary},
    {OpKind::kScale, lower_unary},
    {OpKind::kAddScalar, lower_unary},
    {OpKind::kCast, lower_cast},
    {OpKind::kReshape, lower_reshape},
    {OpKind::kTranspose, lower_transpose},
    {OpKind::kSlice, lower_slice},
    {OpKind::kPad, lower_pad},
    {OpKind::kConcat, lower_concat},
    {OpKind::kBroadcast, lower_broadcast},
    {OpKind::kConstant, lower_constant},
    {OpKind::kReduceSum, lower_reduce},
    {OpKind::kReduceMax, lower_reduce},
    {OpKind::kSumSquares, lower_sum_squares},
    {OpKind::kTreeSum, lower_tree_sum},
    {OpKind::kMatmul, lower_matmul},
    {OpKind::kSoftmax, lower_softmax},
    {OpKind::kSoftmaxGrad, lower_softmax},
    {OpKind::kSiluGrad, lower_gated},
    {OpKind::kCausalMask, lower_causal_mask},
    {OpKind::kRmsNorm, lower_rms_norm},
    {OpKind::kRmsNormGrad, lower_rms_norm_grad},
    {OpKind::kRopeTable, lower_rope_table},
    {OpKind::kRotate, lower_rotate},
    {OpKind::kGather, lower_gather},
    {OpKind::kScatterAdd, lower_scatter_add},
    {OpKind::kCrossEntropy, lower_cross_entropy},
    {OpKind::kCrossEntropyGrad, lower_cross_entropy_grad},
    {OpKind::kAccumulate, lower_accumulate},
    {OpKind::kPhiloxUniform, lower_philox_uniform},
    {OpKind::kMatmulAccumulate, lower_matmul},
    {OpKind::kFlashAttention, lower_flash_attention},
    {OpKind::kFlashAttentionGrad, lower_flash_attention_grad},
    {OpKind::kSwiglu, lower_gated},
    {OpKind::kSwigluGrad, lower_gated},
    {OpKind::kAddRmsNorm, lower_rms_norm},
    {OpKind::kAddRmsNormGrad, lower_rms_norm_grad},
    {OpKind::kAdamw, lower_adamw},
    {OpKind::kLinearCrossEntropy, lower_linear_cross_entropy},
    {OpKind::kLinearCrossEntropyGrad, lower_linear_cross_entropy},
    {OpKind::kFusedPointwise, lower_fused_pointwise},
    {OpKind::kGatherShard, lower_gather_shard},
    {OpKind::kScatterAddShard, lower_scatter_add_shard},
    {OpKind::kCrossEntropyMax, lower_cross_entropy_max},
    {OpKind::kCrossEntropyShard, lower_cross_entropy_shard},
    {OpKind::kCrossEntropyCombine, lower_cross_entropy_combine},
    {OpKind::kCrossEntropyShardGrad, lower_cross_entropy_shard_grad},
    {OpKind::kSliceShard, lower_slice_shard},
    {OpKind::kQuantizeF8, lower_quantize_f8},
    {OpKind::kQuantizeF8Observed, lower_quantize_f8},
    {OpKind::kQuantizeF8Both, lower_quantize_f8},
    {OpKind::kScaledMatmul, lower_scaled_matmul},
    {OpKind::kScaledMatmulAccumulate, lower_scaled_matmul},
    {OpKind::kUpdateAmax, lower_update_amax},
};

constexpr std::array<LowerFn, graph::kNumOpKinds> by_kind() {
  std::array<LowerFn, graph::kNumOpKinds> table{};
  for (const Row& row : kRows) table[static_cast<size_t>(row.kind)] = row.lower;
  return table;
}
constexpr auto kByKind = by_kind();

}  // namespace

LowerFn lowering_of(OpKind kind) { return kByKind[static_cast<size_t>(kind)]; }

}  // namespace sgactor::kernels::cpu
