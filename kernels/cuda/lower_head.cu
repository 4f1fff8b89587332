// The last product and the loss in one: logits exist a block of rows at a time, in the scratch.
// Letters: N rows, R rows of a block, D model dim, V vocabulary.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/row_loss.cuh"

#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// Logits of a block: large, since every block adds to all of the weight's gradient.
constexpr int64_t kMostLogitBytes = 9 * kGiB / 4;

/// A block a row: the row's part of the loss, and its gradient in place of the logits. The second
/// pass finds the row in the L2 cache.
template <int N, class T, class S>
__global__ void loss_and_grad_kernel(int64_t V, const int32_t* targets_R, const S* dloss,
                                     T* logits_RV, double* loss_R) {
  using C = Compute<T>;
  T* x = logits_RV + static_cast<int64_t>(blockIdx.x) * V;
  const int32_t target = targets_R[blockIdx.x];
  const C lse = row_log_sum_exp<N>(V, x);
  if (threadIdx.x == 0) {
    loss_R[blockIdx.x] =
        target < 0 ? 0.0 : static_cast<double>(lse) - static_cast<double>(widen(x[target]));
  }
  __syncthreads();  // the target's logit is read above before it is overwritten below
  const C scale = static_cast<C>(*dloss);
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < V; d += blockDim.x * N) {
    const Vec<T, N> v = load<N>(x + d);
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C p = exp_of(widen(v.v[j]) - lse);
      out.v[j] = narrow<T>(target < 0 ? C(0) : (p - (d + j == target ? C(1) : C(0))) * scale);
    }
    store<N>(x + d, out);
  }
}

/// A block of rows with its products; the last block may be shorter.
struct Block {
  int64_t first = 0;
  int64_t rows = 0;
  Product logits, dx, dw;  // the last two of the gradient only
};

struct Head {
  int64_t N = 0, D = 0, V = 0;
  DType dtype = DType::kF32;
  bool gradient = false;
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
  to_w.accumulate = true;
  SGA_ASSIGN(block.dw, create_product(device, to_w));
  return {};
}

/// Equal blocks but for the last, each below the limit.
Status plan_blocks(CudaDevice& device, Head& h) {
  const int64_t element = dtype_bytes(h.dtype);
  const int64_t most = std::max<int64_t>(kMostLogitBytes / std::max<int64_t>(h.V * element, 1), 1);
  const int64_t count = std::max<int64_t>(ceil_div(h.N, most), 1);
  const int64_t rows = round_up(ceil_div(h.N, count), h.N > most ? 128 : 1);
  int64_t workspace = 0;
  for (int64_t first = 0; first < h.N; first += rows) {
    Block block;
    block.first = first;
    block.rows = std::min(rows, h.N - first);
    if (!h.blocks.empty() && h.blocks.back().rows == block.rows) {
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
  h.loss_offset = round_up(std::min(rows, h.N) * h.V * element, 256);
  h.workspace_offset = h.loss_offset + round_up(h.N * 8, 256);
  h.scratch_bytes = h.workspace_offset + workspace;
  return {};
}

template <class T>
void add_loss(Lowering& low, const Op& op, Head head) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  low.add([=, h = std::move(head)](const Frame& f) -> Status {
    auto* losses = reinterpret_cast<double*>(f.scratch + h.loss_offset);
    T* logits = reinterpret_cast<T*>(f.scratch);
    for (const Block& b : h.blocks) {
      SGA_TRY(b.logits.run(f.stream, f.at<T>(in[0]) + b.first * h.D, f.at<T>(in[1]), logits,
                           f.scratch + h.workspace_offset));
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
  low.add([=, h = std::move(head)](const Frame& f) -> Status {
    auto* losses = reinterpret_cast<double*>(f.scratch + h.loss_offset);
    T* logits = reinterpret_cast<T*>(f.scratch);
    std::byte* workspace = f.scratch + h.workspace_offset;
    for (const Block& b : h.blocks) {
      const T* x = f.at<T>(in[1]) + b.first * h.D;
      SGA_TRY(b.logits.run(f.stream, x, f.at<T>(in[2]), logits, workspace));
      by_lanes<T>(h.V, [&](auto lanes) {
        constexpr int N = decltype(lanes)::value;
        loss_and_grad_kernel<N>
            <<<static_cast<unsigned>(b.rows), threads_for(h.V, 2 * N, 1024), 0, f.stream>>>(
                h.V, f.at<int32_t>(in[3]) + b.first, f.at<Stat<T>>(in[4]), logits,
                losses + b.first);
      });
      SGA_TRY(launched());
      SGA_TRY(
          b.dx.run(f.stream, logits, f.at<T>(in[2]), f.at<T>(out[1]) + b.first * h.D, workspace));
      SGA_TRY(b.dw.run(f.stream, logits, x, f.values[out[0]], workspace));
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
