#pragma once
#include <cstdint>

namespace sgactor::graph {

/// Every op of the IR. Semantics, operands and attributes stand in the table of op_table.cc, one
/// row an op; the text name of kFooBar is "foo_bar".
enum class OpKind : uint16_t {
  // Pointwise, two operands. The shape of the second is that of the first, or a suffix of it, or a
  // scalar.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMinimum,
  kMaximum,
  kPow,
  // Pointwise, one operand.
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kSquare,
  kCos,
  kSin,
  kSigmoid,
  kSilu,
  kScale,
  kAddScalar,
  kCast,
  // Structure.
  kReshape,
  kTranspose,
  kSlice,
  kPad,
  kConcat,
  kBroadcast,
  kConstant,
  // Reductions.
  kReduceSum,
  kReduceMax,
  kSumSquares,
  kTreeSum,
  // Linear algebra.
  kMatmul,
  // Pieces of a transformer, each with the op its gradient needs.
  kSoftmax,
  kSoftmaxGrad,
  kSiluGrad,
  kCausalMask,
  kRmsNorm,
  kRmsNormGrad,
  kRopeTable,
  kRotate,
  kGather,
  kScatterAdd,
  kCrossEntropy,
  kCrossEntropyGrad,
  // State and randomness.
  kAccumulate,
  kPhiloxUniform,
  // Fused: made by passes only, never by models or gradient rules.
  kMatmulAccumulate,
  kFlashAttention,
  kFlashAttentionGrad,
  kSwiglu,
  kSwigluGrad,
  kAddRmsNorm,
  kAddRmsNormGrad,
  kAdamw,
  kLinearCrossEntropy,
  kLinearCrossEntropyGrad,
  kFusedPointwise,
  // Communication over a group of logical ranks: launches of their own, never in a subgraph.
  kAllReduce,
  kAllGather,
  kReduceScatter,
  // One rank's part of ops over a dim that is cut, made by insert_collectives only; the last
  // operand
  // (where there is one) is the rank's index along the axis.
  kGatherShard,
  kScatterAddShard,
  kCrossEntropyMax,
  kCrossEntropyShard,
  kCrossEntropyCombine,
  kCrossEntropyShardGrad,
  kSliceShard,
  // Products of 8-bit floats, made by infer_precision only.
  kQuantizeF8,
  kQuantizeF8Observed,
  kQuantizeF8Both,
  kScaledMatmul,
  kScaledMatmulAccumulate,
  kUpdateAmax,
  kCount
};

inline constexpr int kNumOpKinds = static_cast<int>(OpKind::kCount);

}  // namespace sgactor::graph
