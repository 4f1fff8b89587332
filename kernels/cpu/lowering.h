#pragma once
#include "graph/base/units.h"
#include "graph/ir/op_table.h"
#include "kernels/cpu/executable.h"
#include "kernels/cpu/widen.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace sgactor::kernels::cpu {

/// Builds one executable: walks the body's ops in order and asks the lowering table for steps.
class Lowering {
 public:
  Lowering(std::shared_ptr<CpuDevice> device, const CompileRequest& request)
      : device_(std::move(device)), request_(request) {}

  /// Errors: kUnsupported naming the ops and their types; kOutOfMemory for constants.
  Result<std::unique_ptr<CpuExecutable>> build();

  // For lowering functions.
  [[nodiscard]] const graph::Graph& body() const { return *body_; }
  [[nodiscard]] const TensorType& type(graph::ValueId v) const { return body().type(v); }
  [[nodiscard]] const KernelTable& kernels() const { return *device_->kernels; }
  [[nodiscard]] int32_t num_threads() const { return device_->pool.num_threads(); }
  [[nodiscard]] bool is_output(graph::ValueId v) const { return is_output_[v]; }
  [[nodiscard]] int32_t num_uses(graph::ValueId v) const { return num_uses_[v]; }

  /// Appends a step for the op being lowered.
  void add(Step step);
  /// Scratch of one step, shared by all steps of the executable.
  void need_scratch(int64_t bytes);
  /// Memory for a result known now. The value is read from there; if it is a graph output, a step
  /// also copies it to its place.
  Result<std::byte*> make_constant(graph::ValueId v);
  /// `result` has the bytes of `operand`: no step if they share their place, else a copy.
  void view(graph::ValueId result, graph::ValueId operand);
  /// Marks a later op as done by the steps of the one being lowered.
  void skip(graph::OpId op) { skipped_[op] = true; }
  /// The only op that reads v; kNoOp if there are several, none, or v is a graph output.
  [[nodiscard]] graph::OpId only_user(graph::ValueId v) const;
  /// Whether `v` is a constant zero that one op adds to in place and nobody else reads: it has no
  /// bytes, and that op writes its sum instead of adding to it.
  [[nodiscard]] bool starts_sum(graph::ValueId v) const;
  [[nodiscard]] Status no_kernel(const graph::Op& op) const;

 private:
  void copy_value(graph::ValueId to, graph::ValueId from);
  Status start();
  Status lower_ops();

  std::shared_ptr<CpuDevice> device_;
  CompileRequest request_;
  const graph::Graph* body_ = nullptr;  ///< the request's, or widened_'s
  WidenedBody widened_;
  std::unique_ptr<CpuExecutable> result_;
  graph::OpId current_ = 0;
  std::vector<bool> skipped_;
  std::vector<bool> is_output_;
  std::vector<int32_t> num_uses_;
};

using LowerFn = Status (*)(Lowering& low, const graph::Op& op);
/// The row of the lowering table; nullptr: this backend lacks the op.
LowerFn lowering_of(graph::OpKind kind);

// One function a group of ops, in lower_*.cc.
Status lower_binary(Lowering& low, const graph::Op& op);
Status lower_unary(Lowering& low, const graph::Op& op);
Status lower_cast(Lowering& low, const graph::Op& op);
Status lower_gated(Lowering& low, const graph::Op& op);
Status lower_reshape(Lowering& low, const graph::Op& op);
Status lower_transpose(Lowering& low, const graph::Op& op);
Status lower_slice(Lowering& low, const graph::Op& op);
Status lower_pad(Lowering& low, const graph::Op& op);
Status lower_concat(Lowering& low, const graph::Op& op);
Status lower_broadcast(Lowering& low, const graph::Op& op);
Status lower_constant(Lowering& low, const graph::Op& op);
Status lower_rope_table(Lowering& low, const graph::Op& op);
Status lower_philox_uniform(Lowering& low, const graph::Op& op);
Status lower_reduce(Lowering& low, const graph::Op& op);
Status lower_sum_squares(Lowering& low, const graph::Op& op);
Status lower_tree_sum(Lowering& low, const graph::Op& op);
struct Gemm;
/// The product that `op` asks for of (the last two dims of) its operands, by its "trans_a" and
/// "trans_b"; accumulates nothing. lower_matmul.cc.
Gemm gemm_of(const graph::Op& op, const Shape& a, const Shape& b);
Status lower_matmul(Lowering& low, const graph::Op& op);
Status lower_softmax(Lowering& low, const graph::Op& op);
Status lower_causal_mask(Lowering& low, const graph::Op& op);
Status lower_rms_norm(Lowering& low, const graph::Op& op);
Status lower_rms_norm_grad(Lowering& low, const graph::Op& op);
Status lower_rotate(Lowering& low, const graph::Op& op);
Status lower_gather(Lowering& low, const graph::Op& op);
Status lower_scatter_add(Lowering& low, const graph::Op& op);
Status lower_cross_entropy(Lowering& low, const graph::Op& op);
Status lower_cross_entropy_grad(Lowering& low, const graph::Op& op);
Status lower_flash_attention(Lowering& low, const graph::Op& op);
Status lower_flash_attention_grad(Lowering& low, const graph::Op& op);
Status lower_gather_shard(Lowering& low, const graph::Op& op);
Status lower_scatter_add_shard(Lowering& low, const graph::Op& op);
Status lower_cross_entropy_max(Lowering& low, const graph::Op& op);
Status lower_cross_entropy_shard(Lowering& low, const graph::Op& op);
Status lower_cross_entropy_combine(Lowering& low, const graph::Op& op);
Status lower_cross_entropy_shard_grad(Lowering& low, const graph::Op& op);
Status lower_slice_shard(Lowering& low, const graph::Op& op);
Status lower_accumulate(Lowering& low, const graph::Op& op);
Status lower_adamw(Lowering& low, const graph::Op& op);
Status lower_linear_cross_entropy(Lowering& low, const graph::Op& op);
Status lower_quantize_f8(Lowering& low, const graph::Op& op);
Status lower_scaled_matmul(Lowering& low, const graph::Op& op);
Status lower_update_amax(Lowering& low, const graph::Op& op);
Status lower_fused_pointwise(Lowering& low, const graph::Op& op);

// Helpers for steps.

/// f(begin, end) over [0, n) in blocks of `block`; one block runs inline.
template <class F>
void for_blocks(const Frame& frame, int64_t n, int64_t block, F&& f) {
  if (n <= block) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  frame.pool->parallel_for(ceil_div(n, block),
                           [&](int64_t b, int32_t) { f(b * block, std::min(n, (b + 1) * block)); });
}

/// Elements a block of pointwise loops: large against the cost of handing out a block.
inline constexpr int64_t kPointwiseBlock = 16384;
/// Rows a block so that a block has about kPointwiseBlock elements.
inline int64_t rows_per_block(int64_t row_elements) {
  return std::max<int64_t>(1, kPointwiseBlock / std::max<int64_t>(row_elements, 1));
}

inline bool all_of_type(const Lowering& low, const graph::Op& op, DType dtype) {
  const auto is = [&](graph::ValueId v) { return low.type(v).dtype == dtype; };
  return std::all_of(op.operands.begin(), op.operands.end(), is) &&
         std::all_of(op.results.begin(), op.results.end(), is);
}

}  // namespace sgactor::kernels::cpu
