#pragma once
#include "graph/base/status.h"
#include "graph/ir/graph.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::kernels::reference {

/// A dense row-major tensor in cells of 8 bytes: f64 for float dtypes, i64 for integer dtypes. Does
/// not own its memory.
struct Tensor {
  const TensorType* type = nullptr;
  std::byte* data = nullptr;

  [[nodiscard]] const Shape& shape() const { return type->shape; }
  [[nodiscard]] int64_t size() const { return type->num_elements(); }
  [[nodiscard]] int64_t bytes() const { return size() * 8; }
  [[nodiscard]] double* f64() const { return reinterpret_cast<double*>(data); }
  [[nodiscard]] int64_t* i64() const { return reinterpret_cast<int64_t*>(data); }
};

/// One execution of one op. No result overlaps an operand (run_op sees to it) but for a reshape
/// that shares its operand's place.
struct OpCall {
  const graph::Op& op;
  std::span<const Tensor> in;
  std::span<const Tensor> out;
};

/// Computes every result of the call. Errors: kInvalidArgument where operand values break the op's
/// rules (an id outside its table); results are then unspecified.
using Kernel = Status (*)(const OpCall& call);

/// Runs one op of a verified graph; results may overlap operands in any way (in place, views).
/// Errors: as the kernel, with the op's name in front; results are unspecified then.
/// Rounding: results stay in float64 whatever their dtype, so that the oracle follows the
/// mathematics. Only cast, constant, rope_table, philox_uniform and the quantize ops round, to
/// dtypes narrower than f32 (see round_to), because there the rounding is what the op is for.
Status run_op(const graph::Op& op, std::span<const Tensor> in, std::span<const Tensor> out);

// The kernels, by file. Each is one obvious loop; semantics stand in the op table.

// pointwise.cc
Status add(const OpCall& call);
Status sub(const OpCall& call);
Status mul(const OpCall& call);
Status div(const OpCall& call);
Status minimum(const OpCall& call);
Status maximum(const OpCall& call);
Status pow(const OpCall& call);
Status neg(const OpCall& call);
Status exp(const OpCall& call);
Status log(const OpCall& call);
Status sqrt(const OpCall& call);
Status rsqrt(const OpCall& call);
Status square(const OpCall& call);
Status cos(const OpCall& call);
Status sin(const OpCall& call);
Status sigmoid(const OpCall& call);
Status silu(const OpCall& call);
Status silu_grad(const OpCall& call);
Status scale(const OpCall& call);
Status add_scalar(const OpCall& call);
Status cast(const OpCall& call);

// structure.cc
Status reshape(const OpCall& call);
Status transpose(const OpCall& call);
Status slice(const OpCall& call);
Status pad(const OpCall& call);
Status concat(const OpCall& call);
Status broadcast(const OpCall& call);
Status constant(const OpCall& call);
Status causal_mask(const OpCall& call);
Status philox_uniform(const OpCall& call);

// reductions.cc
Status reduce_sum(const OpCall& call);
Status reduce_max(const OpCall& call);
Status sum_squares(const OpCall& call);
Status tree_sum(const OpCall& call);

// linear.cc
/// y[.., M, N] += factor * matmul(a, b) with the sums over K in order.
void add_product(const graph::Attrs& attrs, const Tensor& a, const Tensor& b, const Tensor& y,
                 double factor = 1.0);
Status matmul(const OpCall& call);
Status matmul_accumulate(const OpCall& call);

// normalize.cc
Status softmax(const OpCall& call);
Status softmax_grad(const OpCall& call);
Status rms_norm(const OpCall& call);
Status rms_norm_grad(const OpCall& call);
Status add_rms_norm(const OpCall& call);
Status add_rms_norm_grad(const OpCall& call);

// embedding.cc
Status rope_table(const OpCall& call);
Status rotate(const OpCall& call);
Status gather(const OpCall& call);
Status scatter_add(const OpCall& call);
Status cross_entropy(const OpCall& call);
Status cross_entropy_grad(const OpCall& call);

// shard.cc
Status gather_shard(const OpCall& call);
Status scatter_add_shard(const OpCall& call);
Status cross_entropy_max(const OpCall& call);
Status cross_entropy_shard(const OpCall& call);
Status cross_entropy_combine(const OpCall& call);
Status cross_entropy_shard_grad(const OpCall& call);
Status slice_shard(const OpCall& call);

// attention.cc
Status flash_attention(const OpCall& call);
Status flash_attention_grad(const OpCall& call);

// fused.cc
Status accumulate(const OpCall& call);
Status swiglu(const OpCall& call);
Status swiglu_grad(const OpCall& call);
Status adamw(const OpCall& call);
Status fused_pointwise(const OpCall& call);

// quantize.cc
Status quantize_f8(const OpCall& call);
Status quantize_f8_observed(const OpCall& call);
Status quantize_f8_both(const OpCall& call);
Status scaled_matmul(const OpCall& call);
Status scaled_matmul_accumulate(const OpCall& call);
Status update_amax(const OpCall& call);

// head.cc
Status linear_cross_entropy(const OpCall& call);
Status linear_cross_entropy_grad(const OpCall& call);

}  // namespace sgactor::kernels::reference
