#pragma once
#include "graph/ir/op_table.h"

namespace sgactor::graph::rules {

/// The gradient column of the op table: vector-Jacobian products, as GradientRule says. Each rule
/// is a formula over `y = f(operands)`; g is the gradient of the (first) result. A rule that cannot
/// serve a request (a gradient through rms_norm's 1/rms) fails the builder.

using Grads = std::span<const ValueId>;
using OperandGrads = std::span<ValueId>;

void add_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void sub_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void mul_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void div_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
/// minimum, maximum: to the operand chosen, to the first on ties.
void extremum_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void pow_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void neg_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void exp_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void log_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void sqrt_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void rsqrt_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void square_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void cos_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void sin_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void sigmoid_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void silu_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void scale_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void add_scalar_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void cast_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void reshape_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void transpose_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void slice_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void pad_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void concat_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void broadcast_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void reduce_sum_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
/// Shared equally by all elements that are the maximum.
void reduce_max_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void sum_squares_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void tree_sum_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);

void matmul_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void softmax_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void causal_mask_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void rms_norm_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void rotate_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void gather_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void scatter_add_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);
void cross_entropy_gradient(Builder& b, const Op& op, Grads g, OperandGrads out);

}  // namespace sgactor::graph::rules
