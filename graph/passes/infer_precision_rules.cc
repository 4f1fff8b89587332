// The rule table of infer_precision. "Inside" means in the kernel: the op table asks every float op
// to compute 16-bit operands in f32 and to round each result once, so a row is narrow where one
// rounding a result is harmless, and wide where errors would add up or small differences are the
// point.
#include "graph/passes/infer_precision.h"

#include <algorithm>
#include <array>

namespace sgactor::graph {
namespace {

using R = PrecisionRule;
constexpr uint32_t kNone = 0;
constexpr uint32_t bit(int operand) { return 1U << operand; }

constexpr std::string_view kMovesOnly = "moves bytes, computes nothing";
constexpr std::string_view kElement = "one rounding an element, as its operands have";
constexpr std::string_view kSensitive = "small differences of its operand matter";
constexpr std::string_view kSumInside = "sums in f32 inside, rounds once";
constexpr std::string_view kMatrixUnit = "the matrix unit takes narrow operands and sums in f32";
constexpr std::string_view kStatInside = "statistics in f32 inside and as results";
constexpr std::string_view kWire = "carries the dtype it is given, sums in f32";
constexpr std::string_view kMade = "names its dtypes itself";
constexpr std::string_view kStorage = "its result is stored for the backward pass";

// Columns: kind, rule, operands in the model's dtype, operands in any dtype, reason.
constexpr PrecisionRow kRules[] = {
    {OpKind::kAdd, R::kFollow, kNone, kNone, kElement},
    {OpKind::kSub, R::kFollow, kNone, kNone, kElement},
    {OpKind::kMul, R::kFollow, kNone, kNone, kElement},
    {OpKind::kDiv, R::kWide, kNone, kNone, kSensitive},
    {OpKind::kMinimum, R::kFollow, kNone, kNone, "chooses, rounds nothing"},
    {OpKind::kMaximum, R::kFollow, kNone, kNone, "chooses, rounds nothing"},
    {OpKind::kPow, R::kWide, kNone, kNone, kSensitive},
    {OpKind::kNeg, R::kFollow, kNone, kNone, "rounds nothing"},
    {OpKind::kExp, R::kWide, kNone, kNone, kSensitive},
    {OpKind::kLog, R::kWide, kNone, kNone, kSensitive},
    {OpKind::kSqrt, R::kWide, kNone, kNone, "roots stand in norms and updates"},
    {OpKind::kRsqrt, R::kWide, kNone, kNone, "roots stand in norms and updates"},
    {OpKind::kSquare, R::kWide, kNone, kNone, "squares stand in norms: range and sums need f32"},
    {OpKind::kCos, R::kWide, kNone, kNone, kSensitive},
    {OpKind::kSin, R::kWide, kNone, kNone, kSensitive},
    {OpKind::kSigmoid, R::kFollow, kNone, kNone, kElement},
    {OpKind::kSilu, R::kFollow, kNone, kNone, kElement},
    {OpKind::kScale, R::kFollow, kNone, kNone, kElement},
    {OpKind::kAddScalar, R::kFollow, kNone, kNone, kElement},
    {OpKind::kCast, R::kWide, kNone, bit(0), "the model names the dtype"},
    {OpKind::kReshape, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kTranspose, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kSlice, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kPad, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kConcat, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kBroadcast, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kConstant, R::kWide, kNone, kNone, "made in the dtype each reader needs"},
    {OpKind::kReduceSum, R::kFollow, kNone, kNone, kSumInside},
    {OpKind::kReduceMax, R::kFollow, kNone, kNone, "chooses, rounds nothing"},
    {OpKind::kSumSquares, R::kWide, kNone, kNone,
     "squares stand in norms: range and sums need f32"},
    {OpKind::kTreeSum, R::kWide, kNone, kNone, "adds in the dtype of its operand"},
    {OpKind::kMatmul, R::kNarrow, kNone, kNone, kMatrixUnit},
    {OpKind::kSoftmax, R::kFollow, kNone, kNone, kStatInside},
    {OpKind::kSoftmaxGrad, R::kFollow, kNone, kNone, kSumInside},
    {OpKind::kSiluGrad, R::kFollow, kNone, kNone, kElement},
    {OpKind::kCausalMask, R::kFollow, kNone, kNone, "chooses, rounds nothing"},
    {OpKind::kRmsNorm, R::kNarrow, kNone, kNone, kStatInside},
    {OpKind::kRmsNormGrad, R::kNarrow, bit(3), kNone, kStatInside},
    {OpKind::kRopeTable, R::kNarrow, kNone, kNone, "angles in f64 inside; factors below one"},
    {OpKind::kRotate, R::kNarrow, kNone, kNone, kStorage},
    {OpKind::kGather, R::kWide, kNone, kNone,
     "reads few rows of the master table; casting rows costs less than casting the table"},
    {OpKind::kScatterAdd, R::kWide, kNone, kNone, "a row may be the sum of many"},
    {OpKind::kCrossEntropy, R::kFollow, kNone, kNone, kStatInside},
    {OpKind::kCrossEntropyGrad, R::kFollow, bit(2) | bit(3), kNone, kStatInside},
    {OpKind::kAccumulate, R::kWide, bit(0), bit(1), "adds to f32 what comes, without a cast"},
    {OpKind::kPhiloxUniform, R::kWide, kNone, kNone, "the model names the dtype"},
    {OpKind::kMatmulAccumulate, R::kNarrow, bit(0), kNone,
     "the matrix unit takes narrow operands; the accumulator and the sum are f32"},
    {OpKind::kFlashAttention, R::kNarrow, kNone, kNone,
     "the matrix unit takes narrow operands; softmax in f32 inside"},
    {OpKind::kFlashAttentionGrad, R::kNarrow, bit(5), kNone,
     "the matrix unit takes narrow operands; softmax in f32 inside"},
    {OpKind::kSwiglu, R::kNarrow, kNone, kNone, kStorage},
    {OpKind::kSwigluGrad, R::kNarrow, kNone, kNone, kElement},
    {OpKind::kAddRmsNorm, R::kNarrow, kNone, kNone, kStatInside},
    {OpKind::kAddRmsNormGrad, R::kNarrow, bit(4), kNone, kStatInside},
    {OpKind::kAdamw, R::kWide, kNone, kNone, "master parameters and moments are f32"},
    {OpKind::kLinearCrossEntropy, R::kNarrow, kNone, kNone,
     "the matrix unit takes narrow operands; logits and loss in f32 inside"},
    {OpKind::kLinearCrossEntropyGrad, R::kNarrow, bit(0) | bit(4), kNone,
     "the matrix unit takes narrow operands; logits, loss and the sum are f32"},
    {OpKind::kFusedPointwise, R::kFollow, kNone, kNone, kElement},
    {OpKind::kAllReduce, R::kFollow, kNone, kNone, kWire},
    {OpKind::kAllGather, R::kNarrow, kNone, kNone,
     "what it gathers is cast to narrow where it is used: casting shards first moves half"},
    {OpKind::kReduceScatter, R::kWide, kNone, kNone, "gradients add up in f32"},
    {OpKind::kGatherShard, R::kWide, kNone, kNone,
     "reads few rows of the master table; casting rows costs less than casting the table"},
    {OpKind::kScatterAddShard, R::kWide, kNone, kNone, "a row may be the sum of many"},
    {OpKind::kCrossEntropyMax, R::kFollow, kNone, kNone, kStatInside},
    {OpKind::kCrossEntropyShard, R::kFollow, bit(2), kNone, kStatInside},
    {OpKind::kCrossEntropyCombine, R::kWide, kNone, kNone, "combines statistics, which are f32"},
    {OpKind::kCrossEntropyShardGrad, R::kFollow, bit(2) | bit(3), kNone, kStatInside},
    {OpKind::kSliceShard, R::kFollow, kNone, kNone, kMovesOnly},
    {OpKind::kQuantizeF8, R::kWide, kNone, bit(0), kMade},
    {OpKind::kQuantizeF8Observed, R::kWide, kNone, bit(0), kMade},
    {OpKind::kQuantizeF8Both, R::kWide, kNone, bit(0), kMade},
    {OpKind::kScaledMatmul, R::kWide, kNone, kNone, kMade},
    {OpKind::kScaledMatmulAccumulate, R::kWide, kNone, kNone, kMade},
    {OpKind::kUpdateAmax, R::kWide, kNone, kNone, kMade},
};

constexpr bool ascends() {
  for (size_t i = 1; i < std::size(kRules); ++i) {
    if (kRules[i - 1].kind >= kRules[i].kind) return false;
  }
  return true;
}
static_assert(ascends(), "rows stand in the order of OpKind, each kind once");

// A new op works before it has a row: in the dtypes that the model gives it.
constexpr PrecisionRow kNoRow = {OpKind::kCount, R::kWide, kNone, kNone, "has no rule"};

}  // namespace

std::string_view to_string(PrecisionRule rule) {
  switch (rule) {
    case R::kFollow:
      return "follow";
    case R::kNarrow:
      return "narrow";
    case R::kWide:
      return "wide";
  }
  return "?";
}

std::span<const PrecisionRow> precision_rules() { return kRules; }

const PrecisionRow& precision_rule(OpKind kind) {
  const auto* row = std::lower_bound(std::begin(kRules), std::end(kRules), kind,
                                     [](const PrecisionRow& r, OpKind k) { return r.kind < k; });
  return row != std::end(kRules) && row->kind == kind ? *row : kNoRow;
}

}  // namespace sgactor::graph
