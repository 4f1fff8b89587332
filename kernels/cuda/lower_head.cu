// The last product and the loss in one: logits exist a block of rows at a time.
// Letters: N rows, R rows of a block, D model dim, V vocabulary.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/head_blocks.h"
#include "kernels/cuda/head_f8.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/row_loss.cuh"

#include <algorithm>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// Logits of a block: large, since every block adds to all of the weight's gradient.
constexpr int64_t kMostLogitBytes = 9 * kGiB / 4;

/// Rows of logits are kept in shared memory up to here: a block an SM then, and the second pass
/// reads little from device memory.
constexpr int64_t kMostRowBytes = 200 * 1024;

/// A block a row: the row's part of the loss, and its gradient in place of the logits. The first
/// `kept` logits stay in shared memory between the passes; a thread reads back its own.
template <int N, class T, class S>
__global__ void __launch_bounds__(1024)
    loss_and_grad_kernel(int64_t V, int64_t kept, const int32_t* targets_R, const S* dloss,
                         T* logits_RV, double* loss_R) {
  using C = Compute<T>;
  constexpr int kAhead = 4;
  extern __shared__ __align__(16) unsigned char shared[];
  T* kept_V = reinterpret_cast<T*>(shared);
  T* x = logits_RV + static_cast<int64_t>(blockIdx.x) * V;
  const int32_t target = targets_R[blockIdx.x];
  const C target_logit = target < 0 ? C(0) : widen(x[target]);
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  MaxAndSum<T> own;
  int64_t d = static_cast<int64_t>(threadIdx.x) * N;
  for (; d + (kAhead - 1) * stride < V; d += kAhead * stride) {
    Vec<T, N> v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = load<N>(x + d + k * stride);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (d + k * stride < kept) store<N>(kept_V + d + k * stride, v[k]);
      own.add(v[k]);
    }
  }
  for (; d < V; d += stride) {
    const Vec<T, N> v = load<N>(x + d);
    if (d < kept) store<N>(kept_V + d, v);
    own.add(v);
  }
  const C lse = own.log_of_block();
  if (threadIdx.x == 0)
    loss_R[blockIdx.x] =
        target < 0 ? 0.0 : static_cast<double>(lse) - static_cast<double>(target_logit);
  const C scale = static_cast<C>(*dloss);
  for (d = static_cast<int64_t>(threadIdx.x) * N; d < V; d += stride) {
    const Vec<T, N> v = d < kept ? load<N>(kept_V + d) : load<N>(x + d);
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C p = exp_for<T>(widen(v.v[j]) - lse);
      out.v[j] = narrow<T>(target < 0 ? C(0) : (p - (d + j == target ? C(1) : C(0))) * scale);
    }
    store<N>(x + d, out);
  }
}

/// Launches it for `rows` rows.
template <int N, class T, class S>
Status run_loss_and_grad(cudaStream_t stream, int64_t rows, int64_t V, const int32_t* targets,
                         const S* dloss, T* logits, double* losses) {
  const auto kernel = loss_and_grad_kernel<N, T, S>;
  constexpr int64_t kMost = kMostRowBytes / static_cast<int64_t>(sizeof(T));
  const int64_t kept = std::min(V, kMost);
  const size_t shared = static_cast<size_t>(kept) * sizeof(T);
  SGA_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kMostRowBytes)));
  kernel<<<static_cast<unsigned>(rows), threads_for(V, 2 * N, 1024), shared, stream>>>(
      V, kept, targets, dloss, logits, losses);
  return launched();
}

/// A block of rows with its products; the last block may be shorter.
struct Block {
  int64_t first = 0;
  int64_t rows = 0;
  bool adds = true;        ///< to the weight's gradient, else writes it
  Product logits, dx, dw;  // the last two of the gradient only
};

struct Head {
  int64_t N = 0, D = 0, V = 0;
  DType dtype = DType::kF32;
  bool gradient = false;
  bool from_zero = false;  ///< the first block writes the weight's gradient
  FreeBytes room;          ///< of the logits; none: they lie first in the scratch
  std::vector<Block> blocks;
  int64_t loss_offset = 0;  ///< in the scratch; f64[N]
  int64_t workspace_offset = 0;
  int64_t scratch_bytes = 0;
};

Status add_products(CudaDevice& device, const Head& h, Block& block) {
  const DType stat = h.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  MatmulShape s{.m = block.rows, .n = h.V, .k = h.D};
  s.operands = h.dtype;
  s.result = h.dtype;
  s.trans_b = true;
  SGA_ASSIGN(block.logits, create_product(device, s));
  if (!h.gradient) return {};
  MatmulShape to_x{.m = block.rows, .n = h.D, .k = h.V};
  to_x.operands = h.dtype;
  to_x.result = h.dtype;
  SGA_ASSIGN(block.dx, create_product(device, to_x));
  MatmulShape to_w{.m = h.V, .n = h.D, .k = block.rows};
  to_w.operands = h.dtype;
  to_w.result = stat;
  to_w.trans_a = true;
  to_w.accumulate = block.adds;
  SGA_ASSIGN(block.dw, create_product(device, to_w));
  return {};
}

/// In the room that the plan has left, if there is any to speak of.
Status plan_blocks(CudaDevice& device, Head& h) {
  const int64_t row_bytes = h.V * dtype_bytes(h.dtype);
  const bool has_room = h.room.bytes > 0 && h.room.bytes >= least_room(h.N, row_bytes);
  if (!has_room) h.room = {};
  const RowBlocks cut(h.N, row_bytes, has_room ? h.room.bytes : kMostLogitBytes);
  int64_t workspace = 0;
  for (int64_t first = 0; first < h.N; first += cut.rows) {
    Block block;
    block.first = first;
    block.rows = std::min(cut.rows, h.N - first);
    block.adds = first > 0 || !h.from_zero;
    if (!h.blocks.empty() && h.blocks.back().rows == block.rows &&
        h.blocks.back().adds == block.adds) {
      const Block& like = h.blocks.back();
      block.logits = like.logits;
      block.dx = like.dx;
      block.dw = like.dw;
    } else {
      SGA_TRY(add_products(device, h, block));
    }
    workspace = std::max({workspace, block.logits.workspace_bytes, block.dx.workspace_bytes,
                          block.dw.workspace_bytes});
    h.blocks.push_back(std::move(block));
  }
  h.loss_offset = has_room ? 0 : cut.bytes;
  h.workspace_offset = h.loss_offset + round_up(h.N * 8, 256);
  h.scratch_bytes = h.workspace_offset + workspace;
  return {};
}

template <class T>
T* logits_at(const Head& h, const Frame& f) {
  return reinterpret_cast<T*>(h.room.bytes > 0 ? h.room.at(f) : f.scratch);
}

template <class T>
void add_loss(Lowering& low, const Op& op, Head head) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  low.add([=, h = std::move(head)](const Frame& f) -> Status {
    auto* losses = reinterpret_cast<double*>(f.scratch + h.loss_offset);
    T* logits = logits_at<T>(h, f);
    for (const Block& b : h.blocks) {
      SGA_TRY(b.logits.run(f.stream, f.at<T>(in[0]) + b.first * h.D, f.at<T>(in[1]), nullptr,
                           logits, f.scratch + h.workspace_offset));
      by_lanes<T>(h.V, [&](auto lanes) {
        constexpr int N = decltype(lanes)::value;
        cross_entropy_kernel<N>
            <<<static_cast<unsigned>(b.rows), threads_for(h.V, 4 * N, 512), 0, f.stream>>>(
                h.V, logits, f.at<int32_t>(in[2]) + b.first, f.at<Stat<T>>(out[1]) + b.first,
                losses + b.first);
      });
    }
    sum_losses_kernel<<<1, 1024, 0, f.stream>>>(h.N, losses, f.at<Stat<T>>(out[0]));
    return launched();
  });
}

template <class T>
void add_gradient(Lowering& low, const Op& op, Head head) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  const int64_t dw_bytes = low.type(out[0]).bytes();
  low.add([=, h = std::move(head)](const Frame& f) -> Status {
    auto* losses = reinterpret_cast<double*>(f.scratch + h.loss_offset);
    T* logits = logits_at<T>(h, f);
    std::byte* workspace = f.scratch + h.workspace_offset;
    if (h.from_zero && h.blocks.empty())
      SGA_CUDA_TRY(cudaMemsetAsync(f.values[out[0]], 0, static_cast<size_t>(dw_bytes), f.stream));
    for (const Block& b : h.blocks) {
      const T* x = f.at<T>(in[1]) + b.first * h.D;
      SGA_TRY(b.logits.run(f.stream, x, f.at<T>(in[2]), nullptr, logits, workspace));
      Status status;
      by_lanes<T>(h.V, [&](auto lanes) {
        Status done = run_loss_and_grad<decltype(lanes)::value>(
            f.stream, b.rows, h.V, f.at<int32_t>(in[3]) + b.first, f.at<Stat<T>>(in[4]), logits,
            losses + b.first);
        status = std::move(done);
      });
      SGA_TRY(status);
      SGA_TRY(b.dx.run(f.stream, logits, f.at<T>(in[2]), nullptr, f.at<T>(out[1]) + b.first * h.D,
                       workspace));
      SGA_TRY(b.dw.run(f.stream, logits, x, nullptr, f.values[out[0]], workspace));
    }
    sum_losses_kernel<<<1, 1024, 0, f.stream>>>(h.N, losses, f.at<Stat<T>>(out[2]));
    return launched();
  });
}

}  // namespace

Status lower_linear_cross_entropy(Lowering& low, const Op& op) {
  Head h;
  h.gradient = op.kind == OpKind::kLinearCrossEntropyGrad;
  const ValueId x = op.operands[h.gradient ? 1 : 0];
  const ValueId w = op.operands[h.gradient ? 2 : 1];
  const ValueId targets = op.operands[h.gradient ? 3 : 2];
  h.N = low.type(x).shape.dim(0);
  h.D = low.type(x).shape.dim(1);
  h.V = low.type(w).shape.dim(0);
  h.dtype = low.type(x).dtype;
  if (h.dtype == DType::kF8E4M3) return lower_f8_head(low, op);
  h.from_zero = h.gradient && starts_from_zero(low.body(), op);
  h.room = largest_gap(low, op);
  if (Status s = plan_blocks(low.device(), h); s.code() == Code::kUnsupported) {
    return low.no_kernel(op);
  } else {
    SGA_TRY(s);
  }
  add_id_check(low, targets, h.V, true, "target");
  low.need_scratch(h.scratch_bytes);
  const bool known = by_float(h.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (h.gradient) {
      add_gradient<T>(low, op, h);
    } else {
      add_loss<T>(low, op, h);
    }
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
