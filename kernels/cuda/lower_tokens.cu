// Token tables and the loss. Letters: V vocabulary, D model dim, N rows.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/row_loss.cuh"

#include <cub/device/device_radix_sort.cuh>

#include <string>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
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

/// First of a rank's rows of a table that is cut in pieces of `rows`; 0 without an index.
__device__ __forceinline__ int64_t first_row(const int32_t* index, int64_t rows) {
  return index == nullptr ? 0 : static_cast<int64_t>(*index) * rows;
}

/// Zeros for ids of other ranks' rows.
template <class W>
__global__ void gather_kernel(int64_t n, int64_t rows, int64_t words, const W* table,
                              const int32_t* ids, const int32_t* index, W* y) {
  const int64_t first = first_row(index, rows);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t position = i / words;
    const int64_t row = ids[position] - first;
    W value{};
    if (row >= 0 && row < rows) value = table[row * words + (i - position * words)];
    y[i] = value;
  }
}

__global__ void iota_kernel(int32_t n, int32_t* y) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = i;
}

/// Block (i, c): if i is the first of its id among the sorted, adds up all rows of that id, which
/// stand in order of position, for the c-th group of columns. Ids of other ranks' rows are left
/// out. With kAdds the sum is added to what is there.
template <int N, bool kAdds, class T>
__global__ void add_segments_kernel(int32_t n, int64_t rows, int64_t D, const int32_t* ids,
                                    const int32_t* from, const int32_t* index, const T* dy_ND,
                                    T* y_VD) {
  const int32_t first = static_cast<int32_t>(blockIdx.x);
  const int32_t id = ids[first];
  if (first > 0 && ids[first - 1] == id) return;
  const int64_t d = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int64_t row = id - first_row(index, rows);
  if (d >= D || row < 0 || row >= rows) return;
  Compute<T> sum[N] = {};
  for (int32_t i = first; i < n && ids[i] == id; ++i) {
    const Vec<T, N> v = load<N>(dy_ND + static_cast<int64_t>(from[i]) * D + d);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += widen(v.v[j]);
  }
  Vec<T, N> out;
  if constexpr (kAdds) {
    const Vec<T, N> before = load<N>(y_VD + row * D + d);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = widen(before.v[j]) + sum[j];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) out.v[j] = narrow<T>(sum[j]);
  store<N>(y_VD + row * D + d, out);
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

struct Scatter {
  SortScratch scratch;
  int32_t n = 0;
  int64_t rows = 0;
  int64_t D = 0;
  bool adds = false;  ///< to what is in y
};

template <class T>
Status run_scatter(const Frame& f, const Scatter& s, const int32_t* ids, const int32_t* index,
                   const T* dy, T* y) {
  const int64_t y_bytes = s.rows * s.D * static_cast<int64_t>(sizeof(T));
  if (y_bytes == 0) return {};
  if (!s.adds) SGA_CUDA_TRY(cudaMemsetAsync(y, 0, static_cast<size_t>(y_bytes), f.stream));
  if (s.n == 0) return {};
  const int64_t list = s.scratch.list_bytes;
  auto* sorted = reinterpret_cast<int32_t*>(f.scratch);
  auto* positions = reinterpret_cast<int32_t*>(f.scratch + list);
  auto* from = reinterpret_cast<int32_t*>(f.scratch + 2 * list);
  iota_kernel<<<blocks_for(s.n, 256), 256, 0, f.stream>>>(s.n, positions);
  size_t temp = s.scratch.temp_bytes;
  // Stable: rows of one id keep the order of their positions.
  SGA_CUDA_TRY(cub::DeviceRadixSort::SortPairs(f.scratch + 3 * list, temp, ids, sorted, positions,
                                               from, s.n, 0, 32, f.stream));
  by_lanes<T>(s.D, [&](auto lanes) {
    constexpr int N = decltype(lanes)::value;
    const dim3 grid(static_cast<unsigned>(s.n), blocks_for(s.D, 128 * N));
    const auto kernel = s.adds ? add_segments_kernel<N, true, T> : add_segments_kernel<N, false, T>;
    kernel<<<grid, 128, 0, f.stream>>>(s.n, s.rows, s.D, sorted, from, index, dy, y);
  });
  return launched();
}

}  // namespace

void add_id_check(Lowering& low, ValueId ids, int64_t limit, bool negative_is_ignored,
                  const char* what) {
  const int64_t n = low.type(ids).num_elements();
  low.add_waiting(
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
  const bool cut = op.kind == OpKind::kGatherShard;
  const ValueId table = op.operands[0];
  const ValueId ids = op.operands[1];
  const ValueId index = cut ? op.operands[2] : ids;
  const ValueId y = op.results[0];
  const int64_t rows = low.type(table).shape.dim(0);
  const int64_t row_bytes = low.type(table).shape.dim(1) * dtype_bytes(low.type(table).dtype);
  const int64_t total = low.type(y).bytes();
  add_id_check(low, ids, cut ? op.attrs.i64("rows") : rows, false, "id");
  if (cut) add_id_check(low, index, kRankLimit, false, "rank index");
  const auto add = [&](auto word) {
    using W = decltype(word);
    low.add([=](const Frame& f) -> Status {
      if (total == 0) return {};
      constexpr auto kSize = static_cast<int64_t>(sizeof(W));
      gather_kernel<<<blocks_for(total / kSize, 256), 256, 0, f.stream>>>(
          total / kSize, rows, row_bytes / kSize, f.at<W>(table), f.at<int32_t>(ids),
          cut ? f.at<int32_t>(index) : nullptr, f.at<W>(y));
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
  const bool cut = op.kind == OpKind::kScatterAddShard;
  const ValueId ids = op.operands[0];
  const ValueId dy = op.operands[1];
  const ValueId index = cut ? op.operands[2] : ids;
  const graph::OpId accumulation = accumulation_of_rows(low, op);
  const bool into_sum = accumulation != graph::kNoOp;
  const ValueId y = into_sum ? low.body().op(accumulation).results[0] : op.results[0];
  const int64_t count = low.type(ids).num_elements();
  if (count > INT32_MAX) return low.no_kernel(op);
  Scatter s;
  s.adds = into_sum && !starts_from_zero(low.body(), low.body().op(accumulation));
  const ValueId acc = s.adds ? low.body().op(accumulation).operands[0] : y;
  const int64_t y_bytes = low.type(y).bytes();
  s.n = static_cast<int32_t>(count);
  s.rows = low.type(y).shape.dim(0);
  s.D = low.type(y).shape.dim(1);
  SGA_ASSIGN(s.scratch, sort_scratch(s.n));
  add_id_check(low, ids, op.attrs.i64("rows"), false, "id");
  if (cut) add_id_check(low, index, kRankLimit, false, "rank index");
  const bool known = by_float(low.type(dy).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    low.need_scratch(s.scratch.total());
    low.add([=](const Frame& f) -> Status {
      if (s.adds && f.values[acc] != f.values[y]) {
        SGA_CUDA_TRY(cudaMemcpyAsync(f.values[y], f.values[acc], static_cast<size_t>(y_bytes),
                                     cudaMemcpyDeviceToDevice, f.stream));
      }
      return run_scatter(f, s, f.at<int32_t>(ids), cut ? f.at<int32_t>(index) : nullptr,
                         f.at<T>(dy), f.at<T>(y));
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
