// Reductions, each in an order that depends on the shapes alone.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"

#include <algorithm>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// Dims of the operand that are kept and folded, neighbours merged.
struct Folded {
  int kept_rank = 0;
  int folded_rank = 0;
  int64_t kept_dims[graph::kMaxRank] = {};
  int64_t kept_strides[graph::kMaxRank] = {};
  int64_t folded_dims[graph::kMaxRank] = {};
  int64_t folded_strides[graph::kMaxRank] = {};
  int64_t kept = 1;
  int64_t folded = 1;
};

Folded fold(const Shape& shape, const std::vector<int64_t>& axes) {
  Folded f;
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 1);
  for (int d = shape.rank() - 2; d >= 0; --d)
    strides[static_cast<size_t>(d)] = strides[static_cast<size_t>(d) + 1] * shape.dim(d + 1);
  for (int d = 0; d < shape.rank(); ++d) {
    const bool folds = std::find(axes.begin(), axes.end(), d) != axes.end();
    int& rank = folds ? f.folded_rank : f.kept_rank;
    int64_t* dims = folds ? f.folded_dims : f.kept_dims;
    int64_t* steps = folds ? f.folded_strides : f.kept_strides;
    (folds ? f.folded : f.kept) *= shape.dim(d);
    const int64_t stride = strides[static_cast<size_t>(d)];
    if (rank > 0 && steps[rank - 1] == stride * shape.dim(d)) {
      dims[rank - 1] *= shape.dim(d);
      steps[rank - 1] = stride;
    } else {
      dims[rank] = shape.dim(d);
      steps[rank++] = stride;
    }
  }
  return f;
}

__device__ int64_t offset_of(int64_t i, int rank, const int64_t* dims, const int64_t* strides) {
  int64_t offset = 0;
  for (int d = rank - 1; d >= 0; --d) {
    const int64_t rest = i / dims[d];
    offset += (i - rest * dims[d]) * strides[d];
    i = rest;
  }
  return offset;
}

/// Sums are kept in double for f32 too: they may be long.
template <class Op, class T>
struct Folder {
  using C = std::conditional_t<std::is_same_v<T, bf16>, float, double>;
  static __device__ C start() {
    if constexpr (std::is_same_v<Op, SumOp>) return 0;
    return -INFINITY;
  }
};

/// A block a result.
template <class Op, class T>
__global__ void fold_rows_kernel(Folded s, const T* x, T* y) {
  using F = Folder<Op, T>;
  const int64_t base = offset_of(blockIdx.x, s.kept_rank, s.kept_dims, s.kept_strides);
  typename F::C all = F::start();
  for (int64_t i = threadIdx.x; i < s.folded; i += blockDim.x) {
    const int64_t at = offset_of(i, s.folded_rank, s.folded_dims, s.folded_strides);
    all = Op::join(all, static_cast<typename F::C>(widen(x[base + at])));
  }
  all = block_reduce<Op>(all);
  if (threadIdx.x == 0) y[blockIdx.x] = narrow<T>(all);
}

/// A thread a result: neighbours read neighbours where the last dim is kept.
template <class Op, class T>
__global__ void fold_columns_kernel(Folded s, const T* x, T* y) {
  using F = Folder<Op, T>;
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= s.kept) return;
  const int64_t base = offset_of(k, s.kept_rank, s.kept_dims, s.kept_strides);
  typename F::C all = F::start();
  for (int64_t i = 0; i < s.folded; ++i) {
    const int64_t at = offset_of(i, s.folded_rank, s.folded_dims, s.folded_strides);
    all = Op::join(all, static_cast<typename F::C>(widen(x[base + at])));
  }
  y[k] = narrow<T>(all);
}

template <class Fold, class T>
void add_reduce(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const Folded s = fold(low.type(x).shape, op.attrs.list("axes"));
  // Rows that end in a folded dim are read along it by a block.
  const bool rows = s.folded_rank > 0 && s.folded_strides[s.folded_rank - 1] == 1;
  low.add([=](const Frame& f) -> Status {
    if (s.kept == 0) return {};
    if (rows) {
      fold_rows_kernel<Fold, T>
          <<<static_cast<unsigned>(s.kept), threads_for(s.folded, 4, 512), 0, f.stream>>>(
              s, f.at<T>(x), f.at<T>(y));
    } else {
      fold_columns_kernel<Fold, T>
          <<<blocks_for(s.kept, 64), 64, 0, f.stream>>>(s, f.at<T>(x), f.at<T>(y));
    }
    return launched();
  });
}

/// Tensors whose chunks one launch sums: chunks of one tensor alone may be too few for the device.
template <class T, class S>
struct SquaresBatch {
  static constexpr int kMost = 32;
  int count = 0;
  int64_t chunk = 0;
  int64_t first_block[kMost + 1] = {};  ///< of tensor t; behind the last: of the launch
  int64_t n[kMost] = {};
  const T* x[kMost] = {};
  S* y[kMost] = {};
};

/// A block a chunk. Four loads are under way at once; each thread adds in the order of its
/// elements.
template <int N, class T, class S>
__global__ void __launch_bounds__(512) sum_squares_kernel(SquaresBatch<T, S> batch) {
  constexpr int kAhead = 4;
  int t = 0;
  while (blockIdx.x >= batch.first_block[t + 1]) ++t;
  const T* x = batch.x[t];
  const int64_t n = batch.n[t];
  const int64_t chunk = batch.chunk;
  const int64_t block = blockIdx.x - batch.first_block[t];
  const int64_t first = block * chunk;
  const int64_t last = first + chunk < n ? first + chunk : n;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  double sums[kAhead] = {};
  int64_t i = first + static_cast<int64_t>(threadIdx.x) * N;
  for (; i + (kAhead - 1) * stride + N <= last; i += kAhead * stride) {
    Vec<T, N> v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = load<N>(x + i + k * stride);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const double e = static_cast<double>(widen(v[k].v[j]));
        sums[k] += e * e;
      }
    }
  }
  for (; i < last; i += stride) {
    const int64_t end = i + N < last ? i + N : last;
    for (int64_t j = i; j < end; ++j) {
      const double e = static_cast<double>(widen(x[j]));
      sums[0] += e * e;
    }
  }
  const double sum = block_reduce<SumOp>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) batch.y[t][block] = static_cast<S>(sum);
}

/// Can sum number `sum` of the body wait until op number `last` has its turn? What it reads is
/// there then, in memory of its own, and nobody asks for its result before.
bool may_wait(const Lowering& low, graph::OpId sum, graph::OpId last) {
  const graph::Graph& body = low.body();
  const ValueId x = body.op(sum).operands[0];
  const ValueId y = body.op(sum).results[0];
  if (sum == last) return true;
  if (low.place(x).space == Place::Space::kWorkspace) return false;
  for (graph::OpId o = sum + 1; o < last; ++o) {
    const Op& op = body.op(o);
    if (std::find(op.operands.begin(), op.operands.end(), y) != op.operands.end()) return false;
    for (ValueId result : op.results) {
      if (overlap(low, x, result)) return false;
    }
  }
  return true;
}

/// The sum_squares ops that one launch does, where the last of them stands: all of equal chunks and
/// dtypes that may wait for it, if none writes over what another one reads. `op` alone where it is
/// not among them.
std::vector<const Op*> joined_sums(const Lowering& low, const Op& op) {
  const auto& ops = low.body().ops();
  const auto joins = [&](const Op& other) {
    return other.kind == OpKind::kSumSquares && other.attrs == op.attrs &&
           low.type(other.operands[0]).dtype == low.type(op.operands[0]).dtype;
  };
  graph::OpId last = 0;
  for (graph::OpId o = 0; o < ops.size(); ++o) {
    if (joins(ops[o])) last = o;
  }
  std::vector<const Op*> joined;
  for (graph::OpId o = 0; o <= last; ++o) {
    if (joins(ops[o]) && may_wait(low, o, last)) joined.push_back(&ops[o]);
  }
  for (const Op* reader : joined) {
    for (const Op* writer : joined) {
      if (overlap(low, reader->operands[0], writer->results[0])) return {&op};
    }
  }
  const bool among = std::find(joined.begin(), joined.end(), &op) != joined.end();
  return among ? joined : std::vector<const Op*>{&op};
}

template <class T>
void add_sum_squares(Lowering& low, const std::vector<const Op*>& ops) {
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Batch = SquaresBatch<T, S>;
  struct Tensor {
    ValueId x, y;
    int64_t n, chunks;
  };
  std::vector<Tensor> tensors;
  for (const Op* op : ops) {
    const int64_t chunks = low.type(op->results[0]).num_elements();
    if (chunks == 0) continue;
    tensors.push_back(
        {op->operands[0], op->results[0], low.type(op->operands[0]).num_elements(), chunks});
  }
  const int64_t chunk = ops[0]->attrs.i64("chunk");
  low.add([=](const Frame& f) -> Status {
    for (size_t begin = 0; begin < tensors.size(); begin += Batch::kMost) {
      Batch batch;
      batch.chunk = chunk;
      int64_t largest = 1;
      for (size_t i = begin; i < std::min(begin + Batch::kMost, tensors.size()); ++i) {
        const Tensor& tensor = tensors[i];
        batch.x[batch.count] = f.at<T>(tensor.x);
        batch.y[batch.count] = f.at<S>(tensor.y);
        batch.n[batch.count] = tensor.n;
        batch.first_block[batch.count + 1] = batch.first_block[batch.count] + tensor.chunks;
        largest = std::max(largest, std::min(chunk, tensor.n));
        ++batch.count;
      }
      constexpr int N = kLanes<T>;
      const auto blocks = static_cast<unsigned>(batch.first_block[batch.count]);
      const int threads = threads_for(largest, 4 * N, 512);
      if (chunk % N == 0) {
        sum_squares_kernel<N><<<blocks, threads, 0, f.stream>>>(batch);
      } else {
        sum_squares_kernel<1><<<blocks, threads, 0, f.stream>>>(batch);
      }
      SGA_TRY(launched());
    }
    return {};
  });
}

/// What the levels of a tree of T are kept in: sums of 16-bit numbers are rounded once, at the end.
template <class T>
using Level = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// One level: pairs of neighbours, an odd one carried up. X: T or Level<T>.
template <class X, class S>
__global__ void tree_level_kernel(int64_t n, const X* x, S* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (2 * i >= n) return;
  const S left = static_cast<S>(widen(x[2 * i]));
  y[i] = 2 * i + 1 < n ? left + static_cast<S>(widen(x[2 * i + 1])) : left;
}

/// All levels of a short list in one block, in shared memory.
template <class X, class T>
__global__ void tree_kernel(int64_t n, const X* x, T* y) {
  using S = Level<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  S* level = reinterpret_cast<S*>(shared);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) level[i] = static_cast<S>(widen(x[i]));
  __syncthreads();
  while (n > 1) {
    const int64_t above = (n + 1) / 2;
    // A pass of blockDim.x results at a time: results of a pass lie below operands of the next.
    for (int64_t first = 0; first < above; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      S value{};
      if (i < above) value = 2 * i + 1 < n ? level[2 * i] + level[2 * i + 1] : level[2 * i];
      __syncthreads();
      if (i < above) level[i] = value;
      __syncthreads();
    }
    n = above;
  }
  if (threadIdx.x == 0) *y = narrow<T>(level[0]);
}

constexpr int64_t kTreeInBlock = 4096;

template <class X, class T>
Status run_last_levels(const Frame& f, int64_t n, const X* x, T* y) {
  // The compiler reads pairs of neighbours at once, an odd last one too.
  const size_t shared = static_cast<size_t>(round_up(n, 2)) * sizeof(Level<T>);
  tree_kernel<<<1, threads_for(n, 2), shared, f.stream>>>(n, x, y);
  return launched();
}

template <class T>
Status run_tree(const Frame& f, int64_t n, const T* x, T* y) {
  if (n == 0) return cuda_status(cudaMemsetAsync(y, 0, sizeof(T), f.stream));
  if (n <= kTreeInBlock) return run_last_levels(f, n, x, y);
  auto* levels = reinterpret_cast<Level<T>*>(f.scratch);
  int64_t above = (n + 1) / 2;
  tree_level_kernel<<<blocks_for(above, 256), 256, 0, f.stream>>>(n, x, levels);
  for (n = above; n > kTreeInBlock; n = above) {
    above = (n + 1) / 2;
    tree_level_kernel<<<blocks_for(above, 256), 256, 0, f.stream>>>(n, levels, levels + n);
    levels += n;
  }
  return run_last_levels(f, n, levels, y);
}

}  // namespace

Status lower_reduce(Lowering& low, const Op& op) {
  const bool known = by_float(low.type(op.operands[0]).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op.kind == OpKind::kReduceSum) {
      add_reduce<SumOp, T>(low, op);
    } else {
      add_reduce<MaxOp, T>(low, op);
    }
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_sum_squares(Lowering& low, const Op& op) {
  const std::vector<const Op*> ops = joined_sums(low, op);
  if (ops.back() != &op) return {};
  const bool known = by_float(low.type(op.operands[0]).dtype, [&](auto tag) {
    add_sum_squares<typename decltype(tag)::type>(low, ops);
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_tree_sum(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t n = low.type(x).num_elements();
  const bool known = by_float(low.type(x).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (n > kTreeInBlock) low.need_scratch((n + 64) * static_cast<int64_t>(sizeof(Level<T>)));
    low.add([=](const Frame& f) { return run_tree(f, n, f.at<T>(x), f.at<T>(y)); });
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
