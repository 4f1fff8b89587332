// One rank's part of the loss and of slices over a dim that is cut. Letters: N rows, V vocabulary,
// v the part of it on this rank. The rank's index is read on the device.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/row_loss.cuh"

#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

constexpr int kThreads = 256;

/// Columns of logits[N, v] that stand for words: the last ranks' may be padding.
__device__ int64_t num_columns(int64_t vocab, int64_t width, int64_t index) {
  const int64_t left = vocab - index * width;
  return left < 0 ? 0 : left < width ? left : width;
}

template <class T>
__global__ void max_kernel(int64_t vocab, int64_t width, const T* logits, const int32_t* index,
                           Stat<T>* y) {
  const T* x = logits + static_cast<int64_t>(blockIdx.x) * width;
  const int64_t columns = num_columns(vocab, width, *index);
  Compute<T> largest = -INFINITY;
  for (int64_t v = threadIdx.x; v < columns; v += blockDim.x)
    largest = MaxOp::join(largest, widen(x[v]));
  largest = block_reduce<MaxOp>(largest);
  if (threadIdx.x == 0) y[blockIdx.x] = largest;
}

template <class T>
__global__ void shard_kernel(int64_t vocab, int64_t width, const T* logits, const int32_t* targets,
                             const Stat<T>* max, const int32_t* index, Stat<T>* sums,
                             Stat<T>* chosen) {
  const T* x = logits + static_cast<int64_t>(blockIdx.x) * width;
  const int64_t columns = num_columns(vocab, width, *index);
  const Compute<T> largest = max[blockIdx.x];
  Compute<T> sum = 0;
  for (int64_t v = threadIdx.x; v < columns; v += blockDim.x) sum += exp_of(widen(x[v]) - largest);
  sum = block_reduce<SumOp>(sum);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = sum;
  const int64_t target = targets[blockIdx.x] - static_cast<int64_t>(*index) * width;
  const bool here = targets[blockIdx.x] >= 0 && target >= 0 && target < columns;
  chosen[blockIdx.x] = here ? widen(x[target]) : Compute<T>(0);
}

/// One block: the loss is a sum in fixed order, in double.
template <class S>
__global__ void combine_kernel(int64_t rows, const int32_t* targets, const S* max, const S* sum,
                               const S* logit, S* loss, S* lse) {
  double total = 0;
  for (int64_t n = threadIdx.x; n < rows; n += blockDim.x) {
    const S own = max[n] + static_cast<S>(::log(sum[n]));
    lse[n] = own;
    if (targets[n] >= 0) total += static_cast<double>(own) - static_cast<double>(logit[n]);
  }
  total = block_reduce<SumOp>(total);
  if (threadIdx.x == 0) *loss = static_cast<S>(total);
}

template <class T>
__global__ void shard_grad_kernel(int64_t vocab, int64_t width, const T* logits,
                                  const int32_t* targets, const Stat<T>* lse, const Stat<T>* dloss,
                                  const int32_t* index, T* y) {
  const int64_t v = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (v >= width) return;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * width + v;
  const int32_t target = targets[blockIdx.x];
  using C = Compute<T>;
  C out = 0;
  if (target >= 0 && v < num_columns(vocab, width, *index)) {
    const bool is_target = v == target - static_cast<int64_t>(*index) * width;
    const C p = exp_of(widen(logits[i]) - static_cast<C>(lse[blockIdx.x]));
    out = (p - (is_target ? C(1) : C(0))) * static_cast<C>(*dloss);
  }
  y[i] = narrow<T>(out);
}

/// y[outer, piece, inner] = x[outer, extent, inner] from index * piece on, zeros beyond.
template <class W>
__global__ void slice_kernel(int64_t n, int64_t extent, int64_t piece, int64_t inner, const W* x,
                             const int32_t* index, W* y) {
  const int64_t first = static_cast<int64_t>(*index) * piece;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t p = i / inner % piece;
    const int64_t o = i / (inner * piece);
    W value{};
    if (first + p < extent) value = x[(o * extent + first + p) * inner + i % inner];
    y[i] = value;
  }
}

template <class T>
void add_row_step(Lowering& low, const Op& op) {
  using S = Stat<T>;
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  const Shape& shape = low.type(in[0]).shape;
  const int64_t rows = shape.dim(0);
  const int64_t width = shape.dim(1);
  const int64_t vocab = op.attrs.i64("vocab");
  const OpKind kind = op.kind;
  low.add([=](const Frame& f) -> Status {
    if (rows == 0) return {};
    const auto blocks = static_cast<unsigned>(rows);
    const int threads = threads_for(width, 8, 512);
    const T* logits = f.at<T>(in[0]);
    if (kind == OpKind::kCrossEntropyMax) {
      max_kernel<<<blocks, threads, 0, f.stream>>>(vocab, width, logits, f.at<int32_t>(in[1]),
                                                   f.at<S>(out[0]));
    } else if (kind == OpKind::kCrossEntropyShard) {
      shard_kernel<<<blocks, threads, 0, f.stream>>>(vocab, width, logits, f.at<int32_t>(in[1]),
                                                     f.at<S>(in[2]), f.at<int32_t>(in[3]),
                                                     f.at<S>(out[0]), f.at<S>(out[1]));
    } else if (width > 0) {
      const dim3 grid(blocks, blocks_for(width, kThreads));
      shard_grad_kernel<<<grid, kThreads, 0, f.stream>>>(vocab, width, logits, f.at<int32_t>(in[1]),
                                                         f.at<S>(in[2]), f.at<S>(in[3]),
                                                         f.at<int32_t>(in[4]), f.at<T>(out[0]));
    }
    return launched();
  });
}

template <class S>
void add_combine(Lowering& low, const Op& op) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  const int64_t rows = low.type(in[0]).num_elements();
  low.add([=](const Frame& f) {
    combine_kernel<<<1, 1024, 0, f.stream>>>(rows, f.at<int32_t>(in[0]), f.at<S>(in[1]),
                                             f.at<S>(in[2]), f.at<S>(in[3]), f.at<S>(out[0]),
                                             f.at<S>(out[1]));
    return launched();
  });
}

}  // namespace

Status lower_cross_entropy_shard(Lowering& low, const Op& op) {
  if (op.kind == OpKind::kCrossEntropyCombine) {
    if (low.type(op.operands[1]).dtype == DType::kF64) {
      add_combine<double>(low, op);
    } else {
      add_combine<float>(low, op);
    }
    return {};
  }
  if (op.kind != OpKind::kCrossEntropyMax)
    add_id_check(low, op.operands[1], op.attrs.i64("vocab"), true, "target");
  add_id_check(low, op.operands.back(), kRankLimit, false, "rank index");
  const bool known = by_float(low.type(op.operands[0]).dtype, [&](auto tag) {
    add_row_step<typename decltype(tag)::type>(low, op);
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_slice_shard(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId index = op.operands[1];
  const ValueId y = op.results[0];
  const int axis = static_cast<int>(op.attrs.i64("axis"));
  const Shape& from = low.type(x).shape;
  const int64_t extent = from.dim(axis);
  const int64_t piece = low.type(y).shape.dim(axis);
  int64_t inner = 1;
  for (int d = axis + 1; d < from.rank(); ++d) inner *= from.dim(d);
  const int64_t n = low.type(y).num_elements();
  add_id_check(low, index, kRankLimit, false, "rank index");
  const auto add = [&](auto word) {
    using W = decltype(word);
    low.add([=](const Frame& f) -> Status {
      if (n == 0) return {};
      slice_kernel<<<blocks_for(n, kThreads), kThreads, 0, f.stream>>>(
          n, extent, piece, inner, f.at<W>(x), f.at<int32_t>(index), f.at<W>(y));
      return launched();
    });
  };
  switch (dtype_bytes(low.type(y).dtype)) {
    case 8:
      add(uint64_t{});
      return {};
    case 4:
      add(uint32_t{});
      return {};
    case 2:
      add(uint16_t{});
      return {};
    default:
      add(uint8_t{});
      return {};
  }
}

}  // namespace sgactor::kernels::cuda
