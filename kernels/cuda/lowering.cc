#include "kernels/cuda/lowering.h"

#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sgactor::kernels::cuda {
namespace {

using graph::OpKind;

struct Row {
  OpKind kind;
  LowerFn lower;
};

// Looked up by kind, not by position: an op that is missing here is refused by name.
constexpr Row kTable[] = {
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
    {OpKind::kGatherShard, lower_gather},
    {OpKind::kScatterAddShard, lower_scatter_add},
    {OpKind::kCrossEntropyMax, lower_cross_entropy_shard},
    {OpKind::kCrossEntropyShard, lower_cross_entropy_shard},
    {OpKind::kCrossEntropyCombine, lower_cross_entropy_shard},
    {OpKind::kCrossEntropyShardGrad, lower_cross_entropy_shard},
    {OpKind::kSliceShard, lower_slice_shard},
    {OpKind::kQuantizeF8, lower_quantize_f8},
    {OpKind::kQuantizeF8Observed, lower_quantize_f8},
    {OpKind::kQuantizeF8Both, lower_quantize_f8},
    {OpKind::kScaledMatmul, lower_scaled_matmul},
    {OpKind::kScaledMatmulAccumulate, lower_scaled_matmul},
    {OpKind::kUpdateAmax, lower_update_amax},
};

}  // namespace

LowerFn lowering_of(OpKind kind) {
  for (const Row& row : kTable) {
    if (row.kind == kind) return row.lower;
  }
  return nullptr;
}

Result<std::unique_ptr<CudaExecutable>> Lowering::build() {
  SGA_TRY(start());
  for (const graph::Op& op : body().ops()) {
    current_ = &op;
    const LowerFn lower = lowering_of(op.kind);
    if (lower == nullptr) return no_kernel(op).with_context(request_.name);
    SGA_TRY(lower(*this, op).with_context(request_.name));
  }
  result_->cut_pieces();
  return std::move(result_);
}

Status Lowering::start() {
  if (request_.body == nullptr || request_.places.size() != request_.body->values().size())
    return invalid_argument(request_.name + ": compile needs a body and one place a value");
  result_ = std::make_unique<CudaExecutable>(device_, request_.name);
  CudaExecutable& e = *result_;
  e.places_.assign(request_.places.begin(), request_.places.end());
  e.constants_.assign(e.places_.size(), nullptr);
  e.resolved_.assign(e.places_.size(), nullptr);
  e.num_inputs_ = body().inputs().size();
  e.workspace_bytes_ = request_.workspace_bytes;
  for (const graph::GraphOutput& output : body().outputs()) {
    e.outputs_.push_back(output.value);
    e.output_bytes_.push_back(type(output.value).bytes());
  }
  for (size_t v = 0; v < e.places_.size(); ++v) {
    const Place& place = e.places_[v];
    const auto count =
        static_cast<int64_t>(place.space == Place::Space::kInput    ? body().inputs().size()
                             : place.space == Place::Space::kOutput ? body().outputs().size()
                                                                    : 1);
    const TensorType& t = type(static_cast<graph::ValueId>(v));
    const bool fits = place.space != Place::Space::kWorkspace ||
                      place.offset <= request_.workspace_bytes - t.bytes();
    if (place.index < 0 || place.index >= count || place.offset < 0 || !fits) {
      return invalid_argument(
          fmt::format("{}: value {} {} has no valid place", request_.name, v, t.to_string()));
    }
  }
  return {};
}

void Lowering::add(StepFn run) {
  add(std::move(run), std::string(graph::op_info(current_->kind).name));
}

void Lowering::add(StepFn run, std::string family) {
  Profile::Work work{std::move(family), graph::op_flops(body(), *current_),
                     static_cast<double>(graph::op_bytes(body(), *current_))};
  result_->steps_.push_back({std::move(run), std::move(work)});
}

void Lowering::add_waiting(StepFn run, std::string family) {
  add(std::move(run), std::move(family));
  result_->steps_.back().waits = true;
}

void Lowering::need_scratch(int64_t bytes) {
  result_->scratch_bytes_ = std::max(result_->scratch_bytes_, round_up(bytes, 256));
}

Status Lowering::make_constant(graph::ValueId v, std::span<const std::byte> native) {
  SGA_ASSIGN(std::unique_ptr<DeviceMemory> memory,
             device_->allocate(static_cast<int64_t>(native.size()), request_.name + " constant"));
  SGA_TRY(device_->write(memory->data(), native));
  result_->constants_[v] = memory->data();
  result_->memory_.push_back(std::move(memory));
  return {};
}

Status Lowering::no_kernel(const graph::Op& op) const {
  std::string text = fmt::format("cuda has no kernel for {}", graph::op_info(op.kind).name);
  for (graph::ValueId v : op.operands) text += " " + type(v).to_string();
  return unsupported(text);
}

}  // namespace sgactor::kernels::cuda
