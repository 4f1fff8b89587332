// The table of ops. Letters of the doc column: B batch, T and S time, H query heads, G key-value
// heads (G divides H), K head dim, D model dim, V vocabulary, N rows; ".." any leading dims; M, N,
// K of a matmul. "stat" is f64 where the first operand is f64, else f32. Float ops work in the
// dtype of their first operand and all float operands have it, unless the row says otherwise.
#include "graph/ir/op_table.h"

#include "graph/ir/gradient_rules.h"
#include "graph/ir/shape_rules.h"
#include "graph/ir/sharding_rules.h"

#include <fmt/format.h>

#include <array>

namespace sgactor::graph {
namespace {

using namespace rules;  // NOLINT(google-build-using-namespace): the columns of the table

using T = AttrSpec::Type;
constexpr AttrSpec kFactor[] = {{"factor", T::kFloat}};
constexpr AttrSpec kValue[] = {{"value", T::kFloat}};
constexpr AttrSpec kDType[] = {{"dtype", T::kDType}};
constexpr AttrSpec kShape[] = {{"shape", T::kIntList}};
constexpr AttrSpec kPerm[] = {{"perm", T::kIntList}};
constexpr AttrSpec kSlice[] = {{"axis", T::kInt}, {"start", T::kInt}, {"size", T::kInt}};
constexpr AttrSpec kPad[] = {{"axis", T::kInt}, {"before", T::kInt}, {"after", T::kInt}};
constexpr AttrSpec kAxis[] = {{"axis", T::kInt}};
constexpr AttrSpec kBroadcast[] = {{"shape", T::kIntList}, {"axes", T::kIntList}};
constexpr AttrSpec kConstant[] = {
    {"value", T::kFloat}, {"shape", T::kIntList}, {"dtype", T::kDType}};
constexpr AttrSpec kAxes[] = {{"axes", T::kIntList}};
constexpr AttrSpec kChunk[] = {{"chunk", T::kInt}};
constexpr AttrSpec kTrans[] = {{"trans_a", T::kBool}, {"trans_b", T::kBool}};
constexpr AttrSpec kFill[] = {{"fill", T::kFloat}};
constexpr AttrSpec kEps[] = {{"eps", T::kFloat}};
constexpr AttrSpec kRope[] = {{"theta", T::kFloat},
                              {"head_dim", T::kInt},
                              {"seq_len", T::kInt},
                              {"scaling", T::kText},
                              {"factor", T::kFloat},
                              {"low_freq_factor", T::kFloat},
                              {"high_freq_factor", T::kFloat},
                              {"original_max_position", T::kInt},
                              {"dtype", T::kDType}};
constexpr AttrSpec kInverse[] = {{"inverse", T::kBool}};
constexpr AttrSpec kRows[] = {{"rows", T::kInt}};
constexpr AttrSpec kRandom[] = {{"shape", T::kIntList}, {"dtype", T::kDType}};
constexpr AttrSpec kAttention[] = {{"scale", T::kFloat}, {"causal", T::kBool}};
constexpr AttrSpec kAdam[] = {
    {"beta1", T::kFloat}, {"beta2", T::kFloat}, {"eps", T::kFloat}, {"weight_decay", T::kFloat}};

constexpr AttrSpec kProgram[] = {{"program", T::kText}};
constexpr AttrSpec kAllReduceAttrs[] = {{"group", T::kText}, {"reduce", T::kText}};
constexpr AttrSpec kAllGatherAttrs[] = {
    {"group", T::kText}, {"members", T::kInt}, {"sizes", T::kIntList}};
constexpr AttrSpec kReduceScatterAttrs[] = {
    {"group", T::kText}, {"members", T::kInt}, {"pieces", T::kIntList}};
constexpr AttrSpec kShardRows[] = {{"rows", T::kInt}, {"shard_rows", T::kInt}};
constexpr AttrSpec kVocab[] = {{"vocab", T::kInt}};
constexpr AttrSpec kSliceShard[] = {{"axis", T::kInt}, {"members", T::kInt}};
constexpr AttrSpec kQuantize[] = {{"dtype", T::kDType}, {"transposed", T::kBool}};
constexpr AttrSpec kScaledProduct[] = {
    {"trans_a", T::kBool}, {"trans_b", T::kBool}, {"dtype", T::kDType}};

using A = AliasSpec::Kind;
constexpr AliasSpec kView[] = {{0, 0, A::kView}};
constexpr AliasSpec kMay[] = {{0, 0, A::kMay}};
constexpr AliasSpec kMayEither[] = {{0, 0, A::kMay}, {0, 1, A::kMay}};
constexpr AliasSpec kMayGated[] = {{0, 0, A::kMay}, {1, 1, A::kMay}, {0, 2, A::kMay}};
constexpr AliasSpec kMust[] = {{0, 0, A::kMust}};
constexpr AliasSpec kMustThird[] = {{2, 2, A::kMust}};
constexpr AliasSpec kMustThree[] = {{0, 0, A::kMust}, {1, 1, A::kMust}, {2, 2, A::kMust}};

/// Number of operands and results; max_operands -1 is "any number", num_results -1 "as operands".
struct Arity {
  int8_t min_operands;
  int8_t max_operands;
  int8_t num_results;
};

constexpr OpInfo row(OpKind kind, std::string_view name, Arity arity,
                     std::span<const AttrSpec> attrs, ShapeRule shape, GradientRule gradient,
                     FlopRule flops, std::span<const AliasSpec> aliases, std::string_view doc,
                     const ShardingRule* sharding = nullptr) {
  return {kind,
          name,
          arity.min_operands,
          arity.max_operands,
          arity.num_results,
          attrs,
          shape,
          gradient,
          flops,
          sharding,
          aliases,
          false,
          false,
          false,
          doc};
}
constexpr OpInfo pointwise(OpInfo info) {
  info.pointwise = true;
  return info;
}
constexpr OpInfo fused(OpInfo info) {
  info.fused = true;
  return info;
}
constexpr OpInfo communicates(OpInfo info) {
  info.communicates = true;
  return info;
}
constexpr OpInfo binary(OpKind kind, std::string_view name, GradientRule gradient,
                        std::string_view doc) {
  return pointwise(
      row(kind, name, {2, 2, 1}, {}, binary_shape, gradient, nullptr, kMay, doc, &kBinarySharding));
}
constexpr OpInfo unary(OpKind kind, std::string_view name, GradientRule gradient,
                       std::string_view doc) {
  return pointwise(
      row(kind, name, {1, 1, 1}, {}, unary_shape, gradient, nullptr, kMay, doc, &kUnarySharding));
}

// One row an op, columns in the order of row().
constexpr std::array<OpInfo, kNumOpKinds> kTable = {
    binary(OpKind::kAdd, "add", add_gradient,
           "a, b -> a + b; the shape of b is that of a, or a suffix of it, or []"),
    binary(OpKind::kSub, "sub", sub_gradient, "a, b -> a - b; shapes as add"),
    binary(OpKind::kMul, "mul", mul_gradient, "a, b -> a * b; shapes as add"),
    binary(OpKind::kDiv, "div", div_gradient, "a, b -> a / b; shapes as add"),
    binary(OpKind::kMinimum, "minimum", extremum_gradient,
           "a, b -> the smaller; the gradient goes to a on ties; shapes as add"),
    binary(OpKind::kMaximum, "maximum", extremum_gradient,
           "a, b -> the larger; the gradient goes to a on ties; shapes as add"),
    binary(OpKind::kPow, "pow", pow_gradient, "a, b -> a^b as C's pow (0^0 = 1); shapes as add"),
    unary(OpKind::kNeg, "neg", neg_gradient, "x -> -x"),
    unary(OpKind::kExp, "exp", exp_gradient, "x -> e^x"),
    unary(OpKind::kLog, "log", log_gradient, "x -> ln x"),
    unary(OpKind::kSqrt, "sqrt", sqrt_gradient, "x -> x^(1/2)"),
    unary(OpKind::kRsqrt, "rsqrt", rsqrt_gradient, "x -> x^(-1/2)"),
    unary(OpKind::kSquare, "square", square_gradient, "x -> x * x"),
    unary(OpKind::kCos, "cos", cos_gradient, "x -> cos x"),
    unary(OpKind::kSin, "sin", sin_gradient, "x -> sin x"),
    unary(OpKind::kSigmoid, "sigmoid", sigmoid_gradient, "x -> 1 / (1 + e^-x)"),
    unary(OpKind::kSilu, "silu", silu_gradient, "x -> x * sigmoid(x)"),
    pointwise(row(OpKind::kScale, "scale", {1, 1, 1}, kFactor, unary_shape, scale_gradient, nullptr,
                  kMay, "x {factor} -> x * factor", &kUnarySharding)),
    pointwise(row(OpKind::kAddScalar, "add_scalar", {1, 1, 1}, kValue, unary_shape,
                  add_scalar_gradient, nullptr, kMay, "x {value} -> x + value", &kUnarySharding)),
    pointwise(row(OpKind::kCast, "cast", {1, 1, 1}, kDType, cast_shape, cast_gradient, nullptr, {},
                  "x of any dtype {dtype} -> x in that dtype; no gradient through integers",
                  &kUnarySharding)),

    row(OpKind::kReshape, "reshape", {1, 1, 1}, kShape, reshape_shape, reshape_gradient, nullptr,
        kView, "x {shape} -> the same bytes with another shape of as many elements",
        &kReshapeSharding),
    row(OpKind::kTranspose, "transpose", {1, 1, 1}, kPerm, transpose_shape, transpose_gradient,
        nullptr, {}, "x {perm} -> dim i of the result is dim perm[i] of x", &kTransposeSharding),
    row(OpKind::kSlice, "slice", {1, 1, 1}, kSlice, slice_shape, slice_gradient, nullptr, {},
        "x {axis, start, size} -> [start, start + size) of `axis`", &kAlongAxisSharding),
    row(OpKind::kPad, "pad", {1, 1, 1}, kPad, pad_shape, pad_gradient, nullptr, {},
        "x {axis, before, after} -> x with zeros around it along `axis`", &kAlongAxisSharding),
    row(OpKind::kConcat, "concat", {1, -1, 1}, kAxis, concat_shape, concat_gradient, nullptr, {},
        "x.. {axis} -> one after the other along `axis`; other dims equal", &kAlongAxisSharding),
    row(OpKind::kBroadcast, "broadcast", {1, 1, 1}, kBroadcast, broadcast_shape, broadcast_gradient,
        nullptr, {},
        "x {shape, axes} -> repeated along `axes` (ascending dims of the result); the dims of x "
        "are the others, in order",
        &kBroadcastSharding),
    row(OpKind::kConstant, "constant", {0, 0, 1}, kConstant, constant_shape, nullptr, nullptr, {},
        "{value, shape, dtype} -> filled with value", &kConstantSharding),

    row(OpKind::kReduceSum, "reduce_sum", {1, 1, 1}, kAxes, reduce_shape, reduce_sum_gradient,
        per_input_flops<1>, {},
        "x {axes} -> sum over `axes` (ascending), which are dropped; order fixed by the backend",
        &kReduceSumSharding),
    row(OpKind::kReduceMax, "reduce_max", {1, 1, 1}, kAxes, reduce_shape, reduce_max_gradient,
        per_input_flops<1>, {},
        "x {axes} -> maximum over `axes` (ascending), which are dropped; ties share the gradient",
        &kReduceMaxSharding),
    row(OpKind::kSumSquares, "sum_squares", {1, 1, 1}, kChunk, sum_squares_shape,
        sum_squares_gradient, per_input_flops<2>, {},
        "x of n elements {chunk} -> stat[ceil(n / chunk)]: sum of squares of each chunk of flat x, "
        "in fixed order, in double, rounded once",
        &kWholeSharding),
    row(OpKind::kTreeSum, "tree_sum", {1, 1, 1}, {}, tree_sum_shape, tree_sum_gradient,
        per_input_flops<1>, {},
        "x[n] -> []: pairwise neighbours, level by level, an odd one carried up; adds in the dtype "
        "of x",
        &kTreeSumSharding),

    row(OpKind::kMatmul, "matmul", {2, 3, 1}, kTrans, matmul_shape, matmul_gradient, matmul_flops,
        {},
        "a[.., M, K] (trans_a: [.., K, M]), b[.., K, N] (trans_b: [.., N, K]) -> [.., M, N]; "
        "leading dims equal; 16-bit floats accumulate in f32; with c as the result: plus c, "
        "rounded "
        "once",
        &kMatmulSharding),

    row(OpKind::kSoftmax, "softmax", {1, 1, 1}, {}, softmax_shape, softmax_gradient,
        per_result_flops<5>, {}, "x[.., D] -> softmax over the last dim, f32 inside",
        &kSoftmaxSharding),
    row(OpKind::kSoftmaxGrad, "softmax_grad", {2, 2, 1}, {}, softmax_grad_shape, nullptr,
        per_result_flops<4>, {}, "y, dy -> y * (dy - sum(y * dy)) over the last dim",
        &kSavedGradSharding),
    pointwise(row(OpKind::kSiluGrad, "silu_grad", {2, 2, 1}, {}, same_pair_shape, nullptr,
                  per_result_flops<6>, kMayEither,
                  "x, dy -> dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))", &kSavedGradSharding)),
    row(OpKind::kCausalMask, "causal_mask", {1, 1, 1}, kFill, causal_mask_shape,
        causal_mask_gradient, nullptr, kMay,
        "x[.., T, S] {fill} -> element (t, s) where s <= t + (S - T), else fill",
        &kCausalMaskSharding),
    row(OpKind::kRmsNorm, "rms_norm", {2, 2, 2}, kEps, rms_norm_shape, rms_norm_gradient,
        per_input_flops<4>, {},
        "x[.., D], w[D] {eps} -> x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps): stat[..]; no "
        "gradient through rstd",
        &kRmsNormSharding),
    row(OpKind::kRmsNormGrad, "rms_norm_grad", {4, 4, 2}, {}, rms_norm_grad_shape, nullptr,
        per_input_flops<8>, {},
        "dy, x[.., D], w[D], rstd[..] -> dx, dw[D]; dw is summed over rows in fixed blocks",
        &kRmsNormGradSharding),
    row(OpKind::kRopeTable, "rope_table", {0, 0, 2}, kRope, rope_table_shape, nullptr, nullptr, {},
        "{..} -> cos, sin [seq_len, head_dim/2] of position * theta^(-2i/head_dim), scaled (none, "
        "linear, llama3); angles in double",
        &kWholeSharding),
    row(OpKind::kRotate, "rotate", {3, 3, 1}, kInverse, rotate_shape, rotate_gradient,
        per_result_flops<3>, {},
        "x[B, T, H, K], cos[T, K/2], sin[T, K/2] {inverse} -> halves (x1 cos - x2 sin, x2 cos + x1 "
        "sin); inverse: -sin",
        &kRotateSharding),
    row(OpKind::kGather, "gather", {2, 2, 1}, {}, gather_shape, gather_gradient, nullptr, {},
        "table[V, D], ids i32[..] -> [.., D]; an id outside [0, V) is an error of the run",
        &kGatherSharding),
    row(OpKind::kScatterAdd, "scatter_add", {2, 2, 1}, kRows, scatter_add_shape,
        scatter_add_gradient, per_operand1_flops, {},
        "ids i32[..], dy[.., D] {rows} -> [rows, D]: rows of dy added up by id, in order of "
        "position",
        &kScatterAddSharding),
    row(OpKind::kCrossEntropy, "cross_entropy", {2, 2, 2}, {}, cross_entropy_shape,
        cross_entropy_gradient, per_input_flops<4>, {},
        "logits[N, V], targets i32[N] -> sum over rows with target >= 0 of (lse - logit[target]): "
        "stat[], lse: stat[N]",
        &kCrossEntropySharding),
    row(OpKind::kCrossEntropyGrad, "cross_entropy_grad", {4, 4, 1}, {}, cross_entropy_grad_shape,
        nullptr, per_result_flops<4>, {},
        "logits, targets, lse, dloss[] -> (softmax - onehot) * dloss, rows of zeros where target < "
        "0",
        &kCrossEntropyGradSharding),

    pointwise(row(OpKind::kAccumulate, "accumulate", {2, 2, 1}, {}, accumulate_shape, nullptr,
                  nullptr, kMust,
                  "acc f32 or f64, x of any float dtype -> acc + x in place; no gradient",
                  &kAccumulateSharding)),
    row(OpKind::kPhiloxUniform, "philox_uniform", {1, 1, 1}, kRandom, philox_uniform_shape, nullptr,
        nullptr, {},
        "key i64[2] = {seed, stream} {shape, dtype} -> element i is PhiloxStream{seed, "
        "stream}.uniform(i)",
        &kWholeSharding),

    fused(row(OpKind::kMatmulAccumulate, "matmul_accumulate", {3, 3, 1}, kTrans,
              matmul_accumulate_shape, nullptr, matmul_accumulate_flops, kMust,
              "acc[M, N] f32 or f64, a, b of rank 2 -> acc + matmul(a, b) in place")),
    fused(row(OpKind::kFlashAttention, "flash_attention", {3, 3, 2}, kAttention,
              flash_attention_shape, nullptr, flash_attention_flops, {},
              "q[B, T, H, K], k[B, T, G, K], v as k {scale, causal} -> o as q, lse stat[B, H, T]; "
              "head h reads group h / (H/G)")),
    fused(row(OpKind::kFlashAttentionGrad, "flash_attention_grad", {6, 6, 3}, kAttention,
              flash_attention_grad_shape, nullptr, flash_attention_grad_flops, {},
              "do, q, k, v, o, lse {scale, causal} -> dq, dk, dv")),
    fused(pointwise(row(OpKind::kSwiglu, "swiglu", {2, 2, 1}, {}, swiglu_shape, nullptr,
                        per_result_flops<5>, kMayEither, "gate, up -> silu(gate) * up"))),
    fused(pointwise(row(OpKind::kSwigluGrad, "swiglu_grad", {3, 3, 2}, {}, swiglu_grad_shape,
                        nullptr, per_result_flops<10>, kMayGated, "gate, up, dy -> dgate, dup"))),
    fused(row(OpKind::kAddRmsNorm, "add_rms_norm", {3, 3, 3}, kEps, add_rms_norm_shape, nullptr,
              per_input_flops<5>, {}, "x, r, w[D] {eps} -> s = x + r, rms_norm(s, w), rstd")),
    fused(row(OpKind::kAddRmsNormGrad, "add_rms_norm_grad", {5, 5, 2}, {}, add_rms_norm_grad_shape,
              nullptr, per_input_flops<9>, {},
              "dy, ds, s, w, rstd -> dx = ds + gradient through the norm (serves x and r), dw")),
    fused(pointwise(row(OpKind::kAdamw, "adamw", {8, 8, 3}, kAdam, adamw_shape, nullptr,
                        per_input_flops<16>, kMustThree,
                        "p, m, v, g f32 or f64, lr[], clip[], bias1[], bias2[] (f32 or as p) -> "
                        "p', m', v' in place: gc = g*clip; m' = beta1*m + (1-beta1)*gc; "
                        "v' = beta2*v + (1-beta2)*gc^2; p' = p*(1 - lr*weight_decay) - (lr/bias1) "
                        "* m' / (sqrt(v')/sqrt(bias2) + eps)"))),
    fused(row(OpKind::kLinearCrossEntropy, "linear_cross_entropy", {3, 3, 2}, {},
              linear_cross_entropy_shape, nullptr, linear_cross_entropy_flops, {},
              "x[N, D], w[V, D], targets i32[N] -> cross_entropy(x w^T, targets): stat[], lse: "
              "stat[N]; the logits exist a block of rows at a time")),
    fused(row(OpKind::kLinearCrossEntropyGrad, "linear_cross_entropy_grad", {5, 9, 3}, {},
              linear_cross_entropy_grad_shape, nullptr, linear_cross_entropy_grad_flops, kMust,
              "acc stat[V, D], x[N, D], w[V, D], targets i32[N], dloss stat[] -> acc + dw in "
              "place, dx, loss stat[]: the loss and its gradients, logits a block of rows at a "
              "time. In 8 bits: x and w f8e4m3, behind dloss their scales f32[] and, for backends "
              "that want them, x and w transposed; gradients of logits before dloss are rounded "
              "to f8e5m2 with scale 2^-15, dx is bf16")),
    fused(pointwise(row(OpKind::kFusedPointwise, "fused_pointwise", {1, -1, 1}, kProgram,
                        fused_pointwise_shape, nullptr, fused_pointwise_flops, kMay,
                        "x, .. of one float dtype {program} -> the last instruction's value; "
                        "operands have the shape of x, or a suffix of it, or []; see "
                        "pointwise_program.h"))),

    communicates(row(OpKind::kAllReduce, "all_reduce", {1, -1, -1}, kAllReduceAttrs,
                     all_reduce_shape, nullptr, nullptr, {},
                     "x.. {group, reduce: \"sum\" or \"max\"} -> each reduced over the group")),
    communicates(
        row(OpKind::kAllGather, "all_gather", {1, -1, -1}, kAllGatherAttrs,
            all_gather_shape, nullptr, nullptr, {},
            "x of piece elements.. {group, members, sizes} -> [size]: member i's is elements [i * "
            "piece, (i + 1) * piece); members * piece >= size")),
    communicates(
        row(OpKind::kReduceScatter, "reduce_scatter", {1, -1, -1}, kReduceScatterAttrs,
            reduce_scatter_shape, nullptr, nullptr, {},
            "x of n elements.. {group, members, pieces} -> [piece]: flat x summed over the "
            "group, elements [i * piece, (i + 1) * piece) at member i, zeros beyond n")),

    row(OpKind::kGatherShard, "gather_shard", {3, 3, 1}, kRows, gather_shard_shape, nullptr,
        nullptr, {},
        "table[v, D] = rows [index * v, (index + 1) * v) of `rows`, ids i32[..], index i32[] "
        "{rows} "
        "-> [.., D]: the row of each id, zeros where another rank has it; an id outside [0, rows) "
        "is an error of the run"),
    row(OpKind::kScatterAddShard, "scatter_add_shard", {3, 3, 1}, kShardRows,
        scatter_add_shard_shape, nullptr, per_operand1_flops, {},
        "ids i32[..], dy[.., D], index i32[] {rows, shard_rows} -> rows [index * shard_rows, "
        "(index "
        "+ 1) * shard_rows) of scatter_add, zeros beyond `rows`"),
    row(OpKind::kCrossEntropyMax, "cross_entropy_max", {2, 2, 1}, kVocab, cross_entropy_max_shape,
        nullptr, per_input_flops<1>, {},
        "logits[N, v] = columns from index * v of `vocab`, index i32[] {vocab} -> stat[N]: maximum "
        "over columns below `vocab`, -inf where there is none"),
    row(OpKind::kCrossEntropyShard, "cross_entropy_shard", {4, 4, 2}, kVocab,
        cross_entropy_shard_shape, nullptr, per_input_flops<4>, {},
        "logits[N, v] as cross_entropy_max, targets i32[N], max stat[N], index i32[] {vocab} -> "
        "stat[N]: sum of exp(logit - max) over columns below `vocab`, stat[N]: the target's logit "
        "where it is in these columns, else 0"),
    row(OpKind::kCrossEntropyCombine, "cross_entropy_combine", {4, 4, 2}, {},
        cross_entropy_combine_shape, nullptr, per_input_flops<4>, {},
        "targets i32[N], max, sum, logit stat[N] of the whole vocabulary -> results of "
        "cross_entropy: lse = max + ln sum"),
    row(OpKind::kCrossEntropyShardGrad, "cross_entropy_shard_grad", {5, 5, 1}, kVocab,
        cross_entropy_shard_grad_shape, nullptr, per_result_flops<4>, {},
        "logits[N, v] as cross_entropy_max, targets, lse, dloss[], index i32[] {vocab} -> these "
        "columns of cross_entropy_grad, zeros from `vocab` on"),
    row(OpKind::kSliceShard, "slice_shard", {2, 2, 1}, kSliceShard, slice_shard_shape, nullptr,
        nullptr, {},
        "x, index i32[] {axis, members} -> [index * n, (index + 1) * n) of `axis`, n = ceil(extent "
        "/ members), zeros beyond x"),

    fused(row(OpKind::kQuantizeF8, "quantize_f8", {2, 2, 2}, kQuantize, quantize_f8_shape, nullptr,
              per_input_flops<2>, {},
              "x rounded to bf16, amax f32[] of an earlier step {dtype: f8e4m3 or f8e5m2, "
              "transposed} -> q = x / scale, rounded to nearest even and saturated, scale f32[] = "
              "f8_scale(dtype, amax), a power of two; transposed: x[M, N] -> q[N, M]")),
    fused(row(OpKind::kQuantizeF8Observed, "quantize_f8_observed", {3, 3, 3}, kQuantize,
              quantize_f8_observed_shape, nullptr, per_input_flops<3>, kMustThird,
              "x, amax f32[], seen f32[] {dtype, transposed} -> q, scale as quantize_f8, seen' = "
              "the larger of seen and |x| rounded to bf16, in place; NaN if there is one")),
    fused(row(OpKind::kQuantizeF8Both, "quantize_f8_both", {3, 3, 4}, kDType,
              quantize_f8_both_shape, nullptr, per_input_flops<3>, kMustThird,
              "x[M, N], amax, seen {dtype} -> q[M, N], scale, seen', q[N, M]: as "
              "quantize_f8_observed, in both layouts by one read of x")),
    fused(row(OpKind::kScaledMatmul, "scaled_matmul", {4, 5, 1}, kScaledProduct,
              scaled_matmul_shape, nullptr, scaled_matmul_flops, {},
              "a, b of rank 2 and any 8-bit float type, scale_a f32[], scale_b f32[] {trans_a, "
              "trans_b, dtype} -> matmul(a, b) * scale_a * scale_b, summed in f32; with c as the "
              "result: plus c, rounded once")),
    fused(row(OpKind::kScaledMatmulAccumulate, "scaled_matmul_accumulate", {5, 5, 1}, kTrans,
              scaled_matmul_accumulate_shape, nullptr, scaled_matmul_accumulate_flops, kMust,
              "acc[M, N] f32 or f64, a, b, scale_a, scale_b -> acc + scaled product in place")),
    fused(row(OpKind::kUpdateAmax, "update_amax", {2, 2, 1}, {}, update_amax_shape, nullptr,
              per_input_flops<1>, kMust,
              "amax f32[], seen f32[] -> seen where that is finite and above 0, else amax; in "
              "place")),
};

constexpr bool in_order() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].kind) != i || kTable[i].name.empty()) return false;
  }
  return true;
}
static_assert(in_order(), "rows stand in the order of OpKind");

bool has_type(const Attr& attr, AttrSpec::Type type) {
  switch (type) {
    case T::kInt:
      return std::holds_alternative<int64_t>(attr);
    case T::kFloat:
      return std::holds_alternative<double>(attr);
    case T::kBool:
      return std::holds_alternative<bool>(attr);
    case T::kText:
      return std::holds_alternative<std::string>(attr);
    case T::kIntList:
      return std::holds_alternative<std::vector<int64_t>>(attr);
    case T::kDType:
      return std::holds_alternative<DType>(attr) &&
             static_cast<int>(std::get<DType>(attr)) < kNumDTypes;
  }
  return false;
}

}  // namespace

std::span<const OpInfo> op_table() { return kTable; }

const OpInfo& op_info(OpKind kind) { return kTable[static_cast<size_t>(kind)]; }

std::optional<OpKind> parse_op_kind(std::string_view name) {
  for (const OpInfo& info : kTable) {
    if (info.name == name) return info.kind;
  }
  return std::nullopt;
}

Status check_type(const TensorType& type) {
  constexpr int64_t kMaxBytes = int64_t{1} << 62;
  if (static_cast<int>(type.dtype) >= kNumDTypes) return invalid_plan("dtype is unknown");
  if (type.shape.rank() > kMaxRank) {
    return invalid_plan(fmt::format("rank {} is above {}", type.shape.rank(), kMaxRank));
  }
  int64_t bytes = dtype_bytes(type.dtype);
  for (int64_t dim : type.shape.dims()) {
    if (dim < 0) return invalid_plan(fmt::format("{} has a negative dim", type.to_string()));
    if (dim == 0) continue;
    if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxBytes) {
      return invalid_plan(fmt::format("{} is too large", type.to_string()));
    }
  }
  return {};
}

Status check_attrs(const OpInfo& info, const Attrs& attrs) {
  for (const AttrSpec& spec : info.attrs) {
    const Attr* attr = attrs.find(spec.name);
    if (attr == nullptr) return invalid_plan(fmt::format("attribute {} is missing", spec.name));
    if (!has_type(*attr, spec.type)) {
      return invalid_plan(fmt::format("attribute {} has another type", spec.name));
    }
  }
  if (attrs.entries().size() == info.attrs.size()) return {};
  for (const auto& [name, attr] : attrs.entries()) {
    bool known = false;
    for (const AttrSpec& spec : info.attrs) known = known || spec.name == name;
    if (!known) return invalid_plan(fmt::format("attribute {} is unknown", name));
  }
  return invalid_plan("an attribute is given twice");
}

Result<std::vector<TensorType>> infer_types(OpKind kind, std::span<const TensorType> operands,
                                            const Attrs& attrs) {
  if (static_cast<int>(kind) >= kNumOpKinds) return invalid_plan("op kind is unknown");
  const OpInfo& info = op_info(kind);
  const auto count = static_cast<int64_t>(operands.size());
  if (count < info.min_operands || (info.max_operands >= 0 && count > info.max_operands)) {
    return invalid_plan(fmt::format("has {} operands, expected {}{}", count, info.min_operands,
                                    info.max_operands < 0 ? " or more" : ""));
  }
  SGA_TRY(check_attrs(info, attrs));
  SGA_ASSIGN(std::vector<TensorType> results, info.shape_rule(operands, attrs));
  for (const TensorType& type : results) SGA_TRY(check_type(type));
  return results;
}

double op_flops(const Graph& graph, const Op& op) {
  const OpInfo& info = op_info(op.kind);
  if (info.flops == nullptr) {
    return info.pointwise ? static_cast<double>(graph.type(op.results[0]).num_elements()) : 0.0;
  }
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (ValueId v : op.operands) operands.push_back(graph.type(v));
  for (ValueId v : op.results) results.push_back(graph.type(v));
  return info.flops(operands, results, op.attrs);
}

int64_t op_bytes(const Graph& graph, const Op& op) {
  const OpInfo& info = op_info(op.kind);
  if (!info.aliases.empty() && info.aliases[0].kind == AliasSpec::Kind::kView) return 0;
  int64_t bytes = 0;
  for (ValueId v : op.operands) bytes += graph.type(v).bytes();
  for (ValueId v : op.results) bytes += graph.type(v).bytes();
  return bytes;
}

}  // namespace sgactor::graph
