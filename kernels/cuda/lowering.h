#pragma once
#include "graph/ir/op_table.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/executable.h"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::kernels::cuda {

/// Builds one executable: walks the body's ops in order and asks the lowering table for steps.
class Lowering {
 public:
  Lowering(std::shared_ptr<CudaDevice> device, const CompileRequest& request)
      : device_(std::move(device)), request_(request) {}

  /// Errors: kUnsupported naming the op and its types; kInvalidArgument for places that do not fit;
  /// kOutOfMemory for constants.
  Result<std::unique_ptr<CudaExecutable>> build();

  // For lowering functions.
  [[nodiscard]] const graph::Graph& body() const { return *request_.body; }
  [[nodiscard]] const TensorType& type(graph::ValueId v) const { return body().type(v); }
  [[nodiscard]] const Place& place(graph::ValueId v) const { return request_.places[v]; }
  [[nodiscard]] CudaDevice& device() const { return *device_; }
  [[nodiscard]] int64_t workspace_bytes() const { return request_.workspace_bytes; }
  /// Appends a step for the op being lowered.
  void add(StepFn run);
  /// The same, with a line of its own in profiles.
  void add(StepFn run, std::string family);
  /// A step that waits for the stream, which nothing that is recorded may.
  void add_waiting(StepFn run, std::string family);
  /// Scratch of one step, shared by all steps of the executable.
  void need_scratch(int64_t bytes);
  /// Gives a result memory with these native bytes, known now.
  Status make_constant(graph::ValueId v, std::span<const std::byte> native);
  [[nodiscard]] Status no_kernel(const graph::Op& op) const;

 private:
  Status start();

  std::shared_ptr<CudaDevice> device_;
  CompileRequest request_;
  std::unique_ptr<CudaExecutable> result_;
  const graph::Op* current_ = nullptr;
};

using LowerFn = Status (*)(Lowering& low, const graph::Op& op);
/// The row of the lowering table; nullptr: this backend lacks the op.
LowerFn lowering_of(graph::OpKind kind);

// One function a group of ops, in lower_*.cu and lower_*.cc.
Status lower_binary(Lowering& low, const graph::Op& op);
Status lower_unary(Lowering& low, const graph::Op& op);
Status lower_gated(Lowering& low, const graph::Op& op);
Status lower_accumulate(Lowering& low, const graph::Op& op);
Status lower_adamw(Lowering& low, const graph::Op& op);
Status lower_cast(Lowering& low, const graph::Op& op);
Status lower_reshape(Lowering& low, const graph::Op& op);
Status lower_transpose(Lowering& low, const graph::Op& op);
Status lower_slice(Lowering& low, const graph::Op& op);
Status lower_pad(Lowering& low, const graph::Op& op);
Status lower_concat(Lowering& low, const graph::Op& op);
Status lower_broadcast(Lowering& low, const graph::Op& op);
Status lower_constant(Lowering& low, const graph::Op& op);
Status lower_philox_uniform(Lowering& low, const graph::Op& op);
Status lower_reduce(Lowering& low, const graph::Op& op);
Status lower_sum_squares(Lowering& low, const graph::Op& op);
Status lower_tree_sum(Lowering& low, const graph::Op& op);
Status lower_matmul(Lowering& low, const graph::Op& op);
Status lower_softmax(Lowering& low, const graph::Op& op);
Status lower_causal_mask(Lowering& low, const graph::Op& op);
Status lower_rms_norm(Lowering& low, const graph::Op& op);
Status lower_rms_norm_grad(Lowering& low, const graph::Op& op);
Status lower_rope_table(Lowering& low, const graph::Op& op);
Status lower_rotate(Lowering& low, const graph::Op& op);
Status lower_gather(Lowering& low, const graph::Op& op);
Status lower_scatter_add(Lowering& low, const graph::Op& op);
Status lower_cross_entropy(Lowering& low, const graph::Op& op);
Status lower_cross_entropy_grad(Lowering& low, const graph::Op& op);
Status lower_flash_attention(Lowering& low, const graph::Op& op);
Status lower_flash_attention_grad(Lowering& low, const graph::Op& op);

Status lower_linear_cross_entropy(Lowering& low, const graph::Op& op);
Status lower_fused_pointwise(Lowering& low, const graph::Op& op);
Status lower_quantize_f8(Lowering& low, const graph::Op& op);
Status lower_scaled_matmul(Lowering& low, const graph::Op& op);
Status lower_update_amax(Lowering& low, const graph::Op& op);
// One rank's part of ops over a dim that is cut.
Status lower_cross_entropy_shard(Lowering& low, const graph::Op& op);
Status lower_slice_shard(Lowering& low, const graph::Op& op);

/// Exclusive bound of a rank's index along an axis, for add_id_check.
inline constexpr int64_t kRankLimit = int64_t{1} << 31;
/// Appends a step that fails with kInvalidArgument unless every id of `ids` (i32) is in [0, limit),
/// or negative where that is allowed. It waits for the stream: what follows a bad id must not run.
void add_id_check(Lowering& low, graph::ValueId ids, int64_t limit, bool negative_is_ignored,
                  const char* what);

}  // namespace sgactor::kernels::cuda
