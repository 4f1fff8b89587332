// The last product and the loss in 8 bits. Letters: N rows, R rows of a block, D model dim, V
// vocabulary.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/head_blocks.h"
#include "kernels/cuda/head_f8.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/quantize_f8.cuh"
#include "kernels/cuda/row_loss.cuh"

#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::ValueId;

/// Logits of a block with their gradients, both ways. Large, since every block adds to all of the
/// weight's gradient.
constexpr int64_t kMostBlockBytes = 9 * kGiB / 2;
constexpr int64_t kBytesPerLogit = 4;

/// A gradient of a logit before the factor of the loss.
__device__ __forceinline__ float logit_grad(bf16 logit, float lse, int32_t target, int64_t column) {
  if (target < 0) return 0;
  return __expf(widen(logit) - lse) - (column == target ? 1.0F : 0.0F);
}

/// A block a tile of 64 x 64: gradients as they lie and transposed. Rows and V are multiples of 16.
__global__ void __launch_bounds__(256)
    logit_grads_kernel(int64_t rows, int64_t V, const bf16* logits_RV, const float* lse_R,
                       const int32_t* targets_R, uint8_t* grads_RV, uint8_t* grads_VR) {
  __shared__ TurnedTile tile;
  const TilePlace place;
  if (place.row < rows && place.column < V) {
    const int64_t at = place.row * V + place.column;
    const Vec<bf16, 16> logits = load<16>(logits_RV + at);
    const float lse = lse_R[place.row];
    const int32_t target = targets_R[place.row];
    Sixteen grads;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      grads.v[i] = logit_grad(logits.v[i], lse, target, place.column + i);
    const uint4 bytes = round_16<DType::kF8E5M2>(grads, 1 / kLogitGradScale);
    *reinterpret_cast<uint4*>(grads_RV + at) = bytes;
    put_16(tile, place.line, place.part, bytes);
  }
  __syncthreads();
  if (place.out_row < V && place.out_column < rows) {
    *reinterpret_cast<uint4*>(grads_VR + place.out_row * rows + place.out_column) =
        take_16(tile, place.line, place.part);
  }
}

/// Any shape, as they lie.
__global__ void logit_grads_any_kernel(int64_t rows, int64_t V, const bf16* logits_RV,
                                       const float* lse_R, const int32_t* targets_R,
                                       uint8_t* grads_RV) {
  const int64_t n = rows * V;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / V;
    const float grad = logit_grad(logits_RV[i], lse_R[row], targets_R[row], i - row * V);
    grads_RV[i] = __nv_cvt_float_to_fp8(grad * (1 / kLogitGradScale), __NV_SATFINITE, __NV_E5M2);
  }
}

/// What rounded gradients are multiplied by: their scale and the factor of the loss.
__global__ void grad_scale_kernel(const float* dloss, float* scale) {
  *scale = *dloss * kLogitGradScale;
}

struct Block {
  int64_t first = 0;
  int64_t rows = 0;
  bool adds = true;  ///< to the weight's gradient, else writes it
  ScaledProduct logits, dx, dw;
};

struct Values {
  ValueId acc, x, w, targets, dloss, scale_x, scale_w, x_turned, w_turned, new_acc, dx, loss;
};

struct Head {
  int64_t N = 0, D = 0, V = 0;
  bool turned = false;     ///< operands and gradients of logits both ways
  bool from_zero = false;  ///< the first block writes the weight's gradient
  FreeBytes room;          ///< of a block: logits, then their gradients; none: first in the scratch
  std::vector<Block> blocks;
  int64_t grads_at = 0, turned_at = 0;  ///< in the block
  // In the scratch: f64[N] losses, f32[R] lse, a scale.
  int64_t loss_at = 0, lse_at = 0, scale_at = 0, workspace_at = 0;
  int64_t scratch_bytes = 0;

  [[nodiscard]] std::byte* block(const Frame& f) const {
    return room.bytes > 0 ? room.at(f) : f.scratch;
  }
};

Status add_products(CudaDevice& device, const Head& h, Block& block) {
  MatmulShape logits{.m = block.rows, .n = h.V, .k = h.D};
  logits.trans_b = true;
  logits.operands = DType::kF8E4M3;
  logits.operands_b = DType::kF8E4M3;
  logits.result = DType::kBF16;
  SGA_ASSIGN(block.logits, create_scaled_product(device, logits));
  MatmulShape dx{.m = block.rows, .n = h.D, .k = h.V};
  dx.trans_b = h.turned;
  dx.operands = DType::kF8E5M2;
  dx.operands_b = DType::kF8E4M3;
  dx.result = DType::kBF16;
  SGA_ASSIGN(block.dx, create_scaled_product(device, dx));
  MatmulShape dw{.m = h.V, .n = h.D, .k = block.rows};
  dw.trans_a = !h.turned;
  dw.trans_b = h.turned;
  dw.operands = DType::kF8E5M2;
  dw.operands_b = DType::kF8E4M3;
  dw.result = DType::kF32;
  dw.accumulate = block.adds;
  if (h.turned) dw.stride_b = h.N;  // columns of a block, of all rows of x
  SGA_ASSIGN(block.dw, create_scaled_product(device, dw));
  return {};
}

/// In the room that the plan has left, if there is any to speak of.
Status plan_blocks(CudaDevice& device, Head& h) {
  const int64_t row_bytes = h.V * kBytesPerLogit;
  // Three parts of a block begin at multiples of 256.
  const int64_t room = h.room.bytes - 768;
  const bool has_room = room > 0 && room >= least_room(h.N, row_bytes);
  if (!has_room) h.room = {};
  const int64_t rows = RowBlocks(h.N, row_bytes, has_room ? room : kMostBlockBytes).rows;
  int64_t workspace = 0;
  for (int64_t first = 0; first < h.N; first += rows) {
    Block block;
    block.first = first;
    block.rows = std::min(rows, h.N - first);
    block.adds = first > 0 || !h.from_zero;
    if (!h.blocks.empty() && h.blocks.back().rows == block.rows &&
        h.blocks.back().adds == block.adds) {
      block = h.blocks.back();
      block.first = first;
    } else {
      SGA_TRY(add_products(device, h, block));
    }
    workspace = std::max({workspace, block.logits.workspace_bytes, block.dx.workspace_bytes,
                          block.dw.workspace_bytes});
    h.blocks.push_back(std::move(block));
  }
  const int64_t largest = std::min(rows, h.N);
  int64_t at = round_up(largest * h.V * 2, 256);
  const auto place = [&](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 256);
    return begin;
  };
  h.grads_at = place(largest * h.V);
  h.turned_at = h.turned ? place(largest * h.V) : h.grads_at;
  if (has_room) at = 0;  // the scratch begins
  h.loss_at = place(h.N * 8);
  h.lse_at = place(largest * 4);
  h.scale_at = place(4);
  h.workspace_at = place(workspace);
  h.scratch_bytes = at;
  return {};
}

/// Loss of the rows, and gradients of their logits.
Status run_loss(const Head& h, const Block& b, const Frame& f, const int32_t* targets) {
  std::byte* block = h.block(f);
  const auto* logits = reinterpret_cast<const bf16*>(block);
  auto* losses = reinterpret_cast<double*>(f.scratch + h.loss_at) + b.first;
  auto* lse = reinterpret_cast<float*>(f.scratch + h.lse_at);
  auto* grads = reinterpret_cast<uint8_t*>(block + h.grads_at);
  by_lanes<bf16>(h.V, [&](auto lanes) {
    constexpr int N = decltype(lanes)::value;
    cross_entropy_kernel<N>
        <<<static_cast<unsigned>(b.rows), threads_for(h.V, 4 * N, 512), 0, f.stream>>>(
            h.V, logits, targets, lse, losses);
  });
  if (h.turned) {
    const dim3 grid(static_cast<unsigned>(ceil_div(h.V, int64_t{kF8Tile})),
                    static_cast<unsigned>(ceil_div(b.rows, int64_t{kF8Tile})));
    logit_grads_kernel<<<grid, 256, 0, f.stream>>>(b.rows, h.V, logits, lse, targets, grads,
                                                   reinterpret_cast<uint8_t*>(block + h.turned_at));
  } else {
    logit_grads_any_kernel<<<blocks_for(b.rows * h.V, 256), 256, 0, f.stream>>>(
        b.rows, h.V, logits, lse, targets, grads);
  }
  return launched();
}

Status run_block(const Head& h, const Block& b, const Values& v, const Frame& f) {
  std::byte* workspace = f.scratch + h.workspace_at;
  std::byte* block = h.block(f);
  const auto* scale_x = f.at<float>(v.scale_x);
  const auto* scale_w = f.at<float>(v.scale_w);
  const auto* scale_grad = reinterpret_cast<const float*>(f.scratch + h.scale_at);
  const uint8_t* x = f.at<uint8_t>(v.x) + b.first * h.D;
  SGA_TRY(b.logits.run(f.stream, x, f.values[v.w], nullptr, block, workspace, {scale_x, scale_w}));
  SGA_TRY(run_loss(h, b, f, f.at<int32_t>(v.targets) + b.first));
  SGA_TRY(b.dx.run(f.stream, block + h.grads_at, f.values[h.turned ? v.w_turned : v.w], nullptr,
                   f.at<bf16>(v.dx) + b.first * h.D, workspace, {scale_grad, scale_w}));
  const uint8_t* rows = h.turned ? f.at<uint8_t>(v.x_turned) + b.first : x;
  return b.dw.run(f.stream, block + h.turned_at, rows, nullptr, f.values[v.new_acc], workspace,
                  {scale_grad, scale_x});
}

}  // namespace

Status lower_f8_head(Lowering& low, const Op& op) {
  const std::vector<ValueId>& in = op.operands;
  const bool has_turned = in.size() == 9;
  const Values v = {in[0],
                    in[1],
                    in[2],
                    in[3],
                    in[4],
                    in[5],
                    in[6],
                    has_turned ? in[7] : in[1],
                    has_turned ? in[8] : in[2],
                    op.results[0],
                    op.results[1],
                    op.results[2]};
  Head h;
  h.N = low.type(v.x).shape.dim(0);
  h.D = low.type(v.x).shape.dim(1);
  h.V = low.type(v.w).shape.dim(0);
  h.turned = has_turned && h.N % 16 == 0 && h.D % 16 == 0 && turns_by_tiles(h.N, h.V);
  h.from_zero = starts_from_zero(low.body(), op);
  h.room = largest_gap(low, op);
  SGA_TRY(plan_blocks(low.device(), h));
  add_id_check(low, v.targets, h.V, true, "target");
  low.need_scratch(h.scratch_bytes);
  const int64_t acc_bytes = low.type(v.acc).bytes();
  low.add([=, head = std::move(h)](const Frame& f) -> Status {
    if (head.from_zero && head.blocks.empty())
      SGA_CUDA_TRY(
          cudaMemsetAsync(f.values[v.new_acc], 0, static_cast<size_t>(acc_bytes), f.stream));
    if (!head.from_zero && f.values[v.acc] != f.values[v.new_acc] && acc_bytes > 0) {
      SGA_CUDA_TRY(cudaMemcpyAsync(f.values[v.new_acc], f.values[v.acc],
                                   static_cast<size_t>(acc_bytes), cudaMemcpyDeviceToDevice,
                                   f.stream));
    }
    grad_scale_kernel<<<1, 1, 0, f.stream>>>(f.at<float>(v.dloss),
                                             reinterpret_cast<float*>(f.scratch + head.scale_at));
    for (const Block& b : head.blocks) SGA_TRY(run_block(head, b, v, f));
    sum_losses_kernel<<<1, 1024, 0, f.stream>>>(
        head.N, reinterpret_cast<const double*>(f.scratch + head.loss_at), f.at<float>(v.loss));
    return launched();
  });
  return {};
}

}  // namespace sgactor::kernels::cuda
