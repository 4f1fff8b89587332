#pragma once
#include "graph/ir/op_table.h"

namespace sgactor::graph::rules {

/// The shape and floating-point-operation columns of the op table. Shape rules run after arity,
/// attribute names and attribute types were checked, on operand types that pass check_type; they
/// must stand any attribute *value*.

using Types = Result<std::vector<TensorType>>;
using Operands = std::span<const TensorType>;

/// kInvalidPlan with this text.
Status bad(std::string message);
/// f64 for f64, else f32: the dtype of statistics (log-sum-exp, 1/rms, sums of squares).
DType stat_dtype(DType dtype);
/// Operand `index` has a float dtype.
Status need_float(Operands operands, size_t index);
/// Operand `index` has rank `rank`.
Status need_rank(Operands operands, size_t index, int rank);
/// Operand `index` has exactly this type; `what` names where the type comes from.
Status need_type(Operands operands, size_t index, DType dtype, const Shape& shape,
                 std::string_view what);

Types binary_shape(Operands operands, const Attrs& attrs);
Types unary_shape(Operands operands, const Attrs& attrs);
Types cast_shape(Operands operands, const Attrs& attrs);
Types reshape_shape(Operands operands, const Attrs& attrs);
Types transpose_shape(Operands operands, const Attrs& attrs);
Types slice_shape(Operands operands, const Attrs& attrs);
Types pad_shape(Operands operands, const Attrs& attrs);
Types concat_shape(Operands operands, const Attrs& attrs);
Types broadcast_shape(Operands operands, const Attrs& attrs);
Types constant_shape(Operands operands, const Attrs& attrs);
Types reduce_shape(Operands operands, const Attrs& attrs);
Types sum_squares_shape(Operands operands, const Attrs& attrs);
Types tree_sum_shape(Operands operands, const Attrs& attrs);
Types matmul_shape(Operands operands, const Attrs& attrs);
Types accumulate_shape(Operands operands, const Attrs& attrs);
Types philox_uniform_shape(Operands operands, const Attrs& attrs);

Types all_reduce_shape(Operands operands, const Attrs& attrs);
Types all_gather_shape(Operands operands, const Attrs& attrs);
Types reduce_scatter_shape(Operands operands, const Attrs& attrs);

Types gather_shard_shape(Operands operands, const Attrs& attrs);
Types scatter_add_shard_shape(Operands operands, const Attrs& attrs);
Types cross_entropy_max_shape(Operands operands, const Attrs& attrs);
Types cross_entropy_shard_shape(Operands operands, const Attrs& attrs);
Types cross_entropy_combine_shape(Operands operands, const Attrs& attrs);
Types cross_entropy_shard_grad_shape(Operands operands, const Attrs& attrs);
Types slice_shard_shape(Operands operands, const Attrs& attrs);

Types softmax_shape(Operands operands, const Attrs& attrs);
Types softmax_grad_shape(Operands operands, const Attrs& attrs);
/// Two floats of one type.
Types same_pair_shape(Operands operands, const Attrs& attrs);
Types causal_mask_shape(Operands operands, const Attrs& attrs);
Types rms_norm_shape(Operands operands, const Attrs& attrs);
Types rms_norm_grad_shape(Operands operands, const Attrs& attrs);
Types rope_table_shape(Operands operands, const Attrs& attrs);
Types rotate_shape(Operands operands, const Attrs& attrs);
Types gather_shape(Operands operands, const Attrs& attrs);
Types scatter_add_shape(Operands operands, const Attrs& attrs);
Types cross_entropy_shape(Operands operands, const Attrs& attrs);
Types cross_entropy_grad_shape(Operands operands, const Attrs& attrs);
Types matmul_accumulate_shape(Operands operands, const Attrs& attrs);
Types flash_attention_shape(Operands operands, const Attrs& attrs);
Types flash_attention_grad_shape(Operands operands, const Attrs& attrs);
Types swiglu_shape(Operands operands, const Attrs& attrs);
Types swiglu_grad_shape(Operands operands, const Attrs& attrs);
Types add_rms_norm_shape(Operands operands, const Attrs& attrs);
Types add_rms_norm_grad_shape(Operands operands, const Attrs& attrs);
Types adamw_shape(Operands operands, const Attrs& attrs);
Types linear_cross_entropy_shape(Operands operands, const Attrs& attrs);
Types linear_cross_entropy_grad_shape(Operands operands, const Attrs& attrs);
Types fused_pointwise_shape(Operands operands, const Attrs& attrs);
Types quantize_f8_shape(Operands operands, const Attrs& attrs);
Types quantize_f8_observed_shape(Operands operands, const Attrs& attrs);
Types quantize_f8_both_shape(Operands operands, const Attrs& attrs);
Types scaled_matmul_shape(Operands operands, const Attrs& attrs);
Types scaled_matmul_accumulate_shape(Operands operands, const Attrs& attrs);
Types update_amax_shape(Operands operands, const Attrs& attrs);

double matmul_flops(Operands operands, Operands results, const Attrs& attrs);
double matmul_accumulate_flops(Operands operands, Operands results, const Attrs& attrs);
double scaled_matmul_flops(Operands operands, Operands results, const Attrs& attrs);
double scaled_matmul_accumulate_flops(Operands operands, Operands results, const Attrs& attrs);
double flash_attention_flops(Operands operands, Operands results, const Attrs& attrs);
double flash_attention_grad_flops(Operands operands, Operands results, const Attrs& attrs);
double linear_cross_entropy_flops(Operands operands, Operands results, const Attrs& attrs);
double linear_cross_entropy_grad_flops(Operands operands, Operands results, const Attrs& attrs);
double fused_pointwise_flops(Operands operands, Operands results, const Attrs& attrs);
/// One for each element of operand 1.
double per_operand1_flops(Operands operands, Operands results, const Attrs& attrs);
/// `kFactor` for each element of result 0.
template <int kFactor>
double per_result_flops(Operands /*operands*/, Operands results, const Attrs& /*attrs*/) {
  return static_cast<double>(kFactor) * static_cast<double>(results[0].num_elements());
}
/// `kFactor` for each element of operand 0.
template <int kFactor>
double per_input_flops(Operands operands, Operands /*results*/, const Attrs& /*attrs*/) {
  return static_cast<double>(kFactor) * static_cast<double>(operands[0].num_elements());
}

}  // namespace sgactor::graph::rules
