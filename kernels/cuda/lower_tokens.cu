// Token tables and the loss. Letters: V vocabulary, D model dim, N rows.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"

#include <cub/device/device_radix_sort.cuh>

#include <string>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::ValueId;

constexpr unsigned long long kNoBadId = ~0ULL;

__global__ void check_ids_kernel(int64_t n, const int32_t* ids, int64_t limit,
                                 bool negative_is_ignored, unsigned long long* found) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t id = ids[i];
  if (id < limit && (id >= 0 || negative_is_ignored)) return;
  atomicMin(found, static_cast<unsigned long long>(i) << 32 | static_cast<uint32_t>(ids[i]));
}

template <class W>
__global__ void gather_kernel(int64_t n, int64_t words, const W* table, const int32_t* ids, W* y) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / words;
    y[i] = table[static_cast<int64_t>(ids[row]) * words + (i - row * words)];
  }
}

__global__ void iota_kernel(int32_t n, int32_t* y) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = i;
}

/// Block (i, c): if i is the first of its id among the sorted, adds up all rows of that id, which
/// stand in order of position, for the c-th group of columns.
template <int N, class T>
__global__ void add_segments_kernel(int32_t n, int64_t D, const int32_t* ids, const int32_t* from,
                                    const T* dy_ND, T* y_VD) {
  const int32_t first = static_cast<int32_t>(blockIdx.x);
  const int32_t id = ids[first];
  if (first > 0 && ids[first - 1] == id) return;
  const int64_t d = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (d >= D) return;
  Compute<T> sum[N] = {};
  for (int32_t i = first; i < n && ids[i] == id; ++i) {
    const Vec<T, N> v = load<N>(dy_ND + static_cast<int64_t>(from[i]) * D + d);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += widen(v.v[j]);
  }
  Vec<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out.v[j] = narrow<T>(sum[j]);
  store<N>(y_VD + static_cast<int64_t>(id) * D + d, out);
}

/// A running maximum and the sum of exponentials below it (Milakov and Gimelshein, "Online
/// normalizer calculation for softmax", 2018).
template <class C>
struct MaxAndSum {
  C max;
  C sum;
  __device__ void add(C x) {
    if (x <= max) {
      sum += exp_of(x - max);
    } else {
      sum = sum * exp_of(max - x) + C(1);
      max = x;
    }
  }
};

template <int N, class T, class S>
__global__ void cross_entropy_kernel(int64_t V, const T* logits_NV, const int32_t* targets_N,
                                     S* lse_N, double* loss_N) {
  using C = Compute<T>;
  const T* x = logits_NV + static_cast<int64_t>(blockIdx.x) * V;
  MaxAndSum<C> own{-INFINITY, 0};
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < V; d += blockDim.x * N) {
    const Vec<T, N> v = load<N>(x + d);
    for (int j = 0; j < N; ++j) {
      const C e = widen(v.v[j]);
      if (e > -INFINITY) own.add(e);
    }
  }
  const C largest = block_reduce<MaxOp>(own.max);
  const C part = own.sum == C(0) ? C(0) : own.sum * exp_of(own.max - largest);
  const C sum = block_reduce<SumOp>(part);
  if (threadIdx.x != 0) return;
  const C lse = largest + static_cast<C>(::log(sum));
  lse_N[blockIdx.x] = lse;
  const int32_t target = targets_N[blockIdx.x];
  loss_N[blockIdx.x] =
      target < 0 ? 0.0 : static_cast<double>(lse) - static_cast<double>(widen(x[target]));
}

template <class S>
__global__ void sum_losses_kernel(int64_t n, const double* loss_N, S* y) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += loss_N[i];
  sum = block_reduce<SumOp>(sum);
  if (threadIdx.x == 0) *y = static_cast<S>(sum);
}

template <int N, class T, class S>
__global__ void cross_entropy_grad_kernel(int64_t V, const T* logits_NV, const int32_t* targets_N,
                                          const S* lse_N, const S* dloss, T* y_NV) {
  using C = Compute<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * V;
  const int32_t target = targets_N[blockIdx.x];
  const C lse = lse_N[blockIdx.x];
  const C scale = target < 0 ? C(0) : static_cast<C>(*dloss);
  const int64_t d = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (d >= V) return;
  const Vec<T, N> v = load<N>(logits_NV + at + d);
  Vec<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const C p = exp_of(widen(v.v[j]) - lse);
    out.v[j] = narrow<T>(target < 0 ? C(0) : (p - (d + j == target ? C(1) : C(0))) * scale);
  }
  store<N>(y_NV + at + d, out);
}

template <class T>
using Stat = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, class F>
void by_lanes(int64_t D, F&& f) {
  if (D % kLanes<T> == 0) {
    f(std::integral_constant<int, kLanes<T>>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

/// Scratch of a scatter: sorted ids, positions, sorted positions, then the sort's own.
struct SortScratch {
  int64_t list_bytes = 0;
  size_t temp_bytes = 0;
  [[nodiscard]] int64_t total() const {
    return 3 * list_bytes + round_up(static_cast<int64_t>(temp_bytes), 256);
  }
};

Result<SortScratch> sort_scratch(int32_t n) {
  SortScratch s;
  s.list_bytes = round_up(static_cast<int64_t>(n) * 4, 256);
  int32_t* none = nullptr;
  SGA_CUDA_TRY(cub::DeviceRadixSort::SortPairs(nullptr, s.temp_bytes, none, none, none, none, n));
  return s;
}

template <class T>
Status run_scatter(const Frame& f, const SortScratch& s, int32_t n, int64_t D, int64_t y_bytes,
                   const int32_t* ids, const T* dy, T* y) {
  if (y_bytes > 0) SGA_CUDA_TRY(cudaMemsetAsync(y, 0, static_cast<size_t>(y_bytes), f.stream));
  if (n == 0 || D == 0) return {};
  auto* sorted = reinterpret_cast<int32_t*>(f.scratch);
  auto* positions = reinterpret_cast<int32_t*>(f.scratch + s.list_bytes);
  auto* from = reinterpret_cast<int32_t*>(f.scratch + 2 * s.list_bytes);
  iota_kernel<<<blocks_for(n, 256), 256, 0, f.stream>>>(n, positions);
  size_t temp = s.temp_bytes;
  // Stable: rows of one id keep the order of their positions.
  SGA_CUDA_TRY(cub::DeviceRadixSort::SortPairs(f.scratch + 3 * s.list_bytes, temp, ids, sorted,
                                               positions, from, n, 0, 32, f.stream));
  by_lanes<T>(D, [&](auto lanes) {
    constexpr int N = decltype(lanes)::value;
    const dim3 grid(static_cast<unsigned>(n), blocks_for(D, 128 * N));
    add_segments_kernel<N><<<grid, 128, 0, f.stream>>>(n, D, sorted, from, dy, y);
  });
  return launched();
}

}  // namespace

void add_id_check(Lowering& low, ValueId ids, int64_t limit, bool negative_is_ignored,
                  const char* what) {
  const int64_t n = low.type(ids).num_elements();
  low.add(
      [=](const Frame& f) -> Status {
        if (n == 0) return {};
        SGA_CUDA_TRY(cudaMemsetAsync(f.check.device, 0xff, sizeof(*f.check.device), f.stream));
        check_ids_kernel<<<blocks_for(n, 256), 256, 0, f.stream>>>(
            n, f.at<int32_t>(ids), limit, negative_is_ignored, f.check.device);
        SGA_TRY(launched());
        SGA_CUDA_TRY(cudaMemcpyAsync(f.check.host, f.check.device, sizeof(*f.check.host),
                                     cudaMemcpyDeviceToHost, f.stream));
        SGA_CUDA_TRY(cudaStreamSynchronize(f.stream));
        const unsigned long long found = *f.check.host;
        if (found == kNoBadId) return {};
        return invalid_argument(std::string(what) + " " +
                                std::to_string(static_cast<int32_t>(found & 0xffffffffU)) +
                                " at position " + std::to_string(found >> 32) + " is outside [0, " +
                                std::to_string(limit) + ")");
      },
      "id check");
}

Status lower_gather(Lowering& low, const Op& op) {
  const ValueId table = op.operands[0];
  const ValueId ids = op.operands[1];
  const ValueId y = op.results[0];
  const int64_t D = low.type(table).shape.dim(1);
  const int64_t row_bytes = D * dtype_bytes(low.type(table).dtype);
  const int64_t total = low.type(y).bytes();
  add_id_check(low, ids, low.type(table).shape.dim(0), false, "id");
  const auto add = [&](auto word) {
    using W = decltype(word);
    low.add([=](const Frame& f) -> Status {
      if (total == 0) return {};
      constexpr auto kSize = static_cast<int64_t>(sizeof(W));
      gather_kernel<<<blocks_for(total / kSize, 256), 256, 0, f.stream>>>(
          total / kSize, row_bytes / kSize, f.at<W>(table), f.at<int32_t>(ids), f.at<W>(y));
      return launched();
    });
  };
  if (row_bytes % 16 == 0) {
    add(uint4{});
  } else if (row_bytes % 4 == 0) {
    add(uint32_t{});
  } else if (row_bytes % 2 == 0) {
    add(uint16_t{});
  } else {
    add(uint8_t{});
  }
  return {};
}

Status lower_scatter_add(Lowering& low, const Op& op) {
  const ValueId ids = op.operands[0];
  const ValueId dy = op.operands[1];
  const ValueId y = op.results[0];
  const int64_t count = low.type(ids).num_elements();
  if (count > INT32_MAX) return low.no_kernel(op);
  const auto n = static_cast<int32_t>(count);
  const int64_t D = low.type(y).shape.dim(1);
  const int64_t y_bytes = low.type(y).bytes();
  SGA_ASSIGN(const SortScratch scratch, sort_scratch(n));
  add_id_check(low, ids, low.type(y).shape.dim(0), false, "id");
  const bool known = by_float(low.type(dy).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    low.need_scratch(scratch.total());
    low.add([=](const Frame& f) {
      return run_scatter(f, scratch, n, D, y_bytes, f.at<int32_t>(ids), f.at<T>(dy), f.at<T>(y));
    });
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_cross_entropy(Lowering& low, const Op& op) {
  const ValueId logits = op.operands[0];
  const ValueId targets = op.operands[1];
  const ValueId loss = op.results[0];
  const ValueId lse = op.results[1];
  const int64_t rows = low.type(logits).shape.dim(0);
  const int64_t V = low.type(logits).shape.dim(1);
  add_id_check(low, targets, V, true, "target");
  low.need_scratch(rows * static_cast<int64_t>(sizeof(double)));
  const bool known = by_float(low.type(logits).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using S = Stat<T>;
    by_lanes<T>(V, [&](auto lanes) {
      constexpr int N = decltype(lanes)::value;
      low.add([=](const Frame& f) -> Status {
        auto* losses = reinterpret_cast<double*>(f.scratch);
        if (rows > 0) {
          cross_entropy_kernel<N>
              <<<static_cast<unsigned>(rows), threads_for(V, 4 * N, 512), 0, f.stream>>>(
                  V, f.at<T>(logits), f.at<int32_t>(targets), f.at<S>(lse), losses);
        }
        sum_losses_kernel<<<1, 1024, 0, f.stream>>>(rows, losses, f.at<S>(loss));
        return launched();
      });
    });
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_cross_entropy_grad(Lowering& low, const Op& op) {
  const std::vector<ValueId> in = op.operands;
  const ValueId y = op.results[0];
  const int64_t rows = low.type(y).shape.dim(0);
  const int64_t V = low.type(y).shape.dim(1);
  add_id_check(low, in[1], V, true, "target");
  const bool known = by_float(low.type(y).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using S = Stat<T>;
    by_lanes<T>(V, [&](auto lanes) {
      constexpr int N = decltype(lanes)::value;
      low.add([=](const Frame& f) -> Status {
        if (rows * V == 0) return {};
        const dim3 grid(static_cast<unsigned>(rows), blocks_for(V, 256 * N));
        cross_entropy_grad_kernel<N><<<grid, 256, 0, f.stream>>>(
            V, f.at<T>(in[0]), f.at<int32_t>(in[1]), f.at<S>(in[2]), f.at<S>(in[3]), f.at<T>(y));
        return launched();
      });
    });
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
