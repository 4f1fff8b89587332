// RMS norm, alone or after an addition, and its gradient. Letters: N rows (all leading dims), D the
// last dim, P parts of the rows.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/rounded_maker.h"
#include "kernels/cuda/row_loss.cuh"

#include <cuda_pipeline_primitives.h>

#include <cmath>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// Blocks that share the rows of a norm's weight gradient; fixed, so that sums have one order.
constexpr int64_t kGradBlocks = 528;
constexpr int64_t kWarpGradBlocks = 132;  ///< where an SM has room for one
constexpr int64_t kMostSharedBytes = 48 * 1024;

int64_t row_length(const TensorType& t) { return t.shape.dim(-1); }
int64_t num_rows(const TensorType& t) {
  int64_t n = 1;
  for (int d = 0; d + 1 < t.shape.rank(); ++d) n *= t.shape.dim(d);
  return n;
}

template <int N, class T, class F>
__device__ __forceinline__ void for_row(const T* /*type*/, int64_t D, F&& f) {
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < D; d += blockDim.x * N) f(d);
}

/// y = norm(x + r) * w; without r, s is not written. Without y, what rounds it makes it.
template <int N, class T, class S>
__global__ void rms_norm_kernel(int64_t D, Compute<T> eps, const T* x_ND, const T* r_ND,
                                const T* w_D, T* s_ND, T* y_ND, S* rstd_N) {
  using C = Compute<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  C sum = 0;
  for_row<N>(x_ND, D, [&](int64_t d) {
    Vec<T, N> x = load<N>(x_ND + at + d);
    if (r_ND != nullptr) {
      const Vec<T, N> r = load<N>(r_ND + at + d);
      for (int j = 0; j < N; ++j) x.v[j] = narrow<T>(widen(x.v[j]) + widen(r.v[j]));
      store<N>(s_ND + at + d, x);
    }
    for (int j = 0; j < N; ++j) sum += widen(x.v[j]) * widen(x.v[j]);
  });
  sum = block_reduce<SumOp>(sum);
  const C rstd = C(1) / static_cast<C>(sqrt(sum / static_cast<C>(D) + eps));
  if (threadIdx.x == 0) rstd_N[blockIdx.x] = rstd;
  if (y_ND == nullptr) return;
  // A thread reads back only what it wrote itself.
  const T* from = r_ND != nullptr ? s_ND : x_ND;
  for_row<N>(x_ND, D, [&](int64_t d) {
    const Vec<T, N> x = load<N>(from + at + d);
    const Vec<T, N> w = load<N>(w_D + d);
    Vec<T, N> y;
    for (int j = 0; j < N; ++j) y.v[j] = narrow<T>(widen(x.v[j]) * rstd * widen(w.v[j]));
    store<N>(y_ND + at + d, y);
  });
}

/// Rows of a block of warp_norm_kernel.
constexpr int kWarpRows = 8;

/// The same for rows of 32 * N * kParts elements: a warp a row, which stays in its registers, so
/// that no barrier stands between reads and all of a row's reads are under way at once.
template <int N, int kParts, class T, class S>
__global__ void __launch_bounds__(32 * kWarpRows)
    warp_norm_kernel(int64_t rows, Compute<T> eps, const T* x_ND, const T* r_ND, const T* w_D,
                     T* s_ND, T* y_ND, S* rstd_N) {
  using C = Compute<T>;
  constexpr int64_t D = int64_t{32} * N * kParts;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t lane = static_cast<int64_t>(threadIdx.x % 32) * N;
  const int64_t at = row * D + lane;
  Vec<T, N> x[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) x[p] = load<N>(x_ND + at + p * 32 * N);
  if (r_ND != nullptr) {
    Vec<T, N> r[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) r[p] = load<N>(r_ND + at + p * 32 * N);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int j = 0; j < N; ++j) x[p].v[j] = narrow<T>(widen(x[p].v[j]) + widen(r[p].v[j]));
      store<N>(s_ND + at + p * 32 * N, x[p]);
    }
  }
  C sum = 0;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum += widen(x[p].v[j]) * widen(x[p].v[j]);
  }
  sum = warp_sum(sum);
  const C rstd = C(1) / static_cast<C>(sqrt(sum / static_cast<C>(D) + eps));
  if (lane == 0) rstd_N[row] = rstd;
  if (y_ND == nullptr) return;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const Vec<T, N> w = load<N>(w_D + lane + p * 32 * N);
    Vec<T, N> y;
#pragma unroll
    for (int j = 0; j < N; ++j) y.v[j] = narrow<T>(widen(x[p].v[j]) * rstd * widen(w.v[j]));
    store<N>(y_ND + at + p * 32 * N, y);
  }
}

/// What a norm is launched with. r, s and y may be null, as in the kernels.
template <class T>
struct Norm {
  int64_t rows = 0, D = 0;
  Compute<T> eps = 0;
  const T* x = nullptr;
  const T* r = nullptr;
  const T* w = nullptr;
  T* s = nullptr;
  T* y = nullptr;
  Stat<T>* rstd = nullptr;
};

/// Launches warp_norm_kernel if it has the row length; false if not.
template <class T>
bool launch_warp_norm(const Norm<T>& n, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    const auto run = [&](auto kernel) {
      kernel<<<static_cast<unsigned>(ceil_div(n.rows, kWarpRows)), 32 * kWarpRows, 0, stream>>>(
          n.rows, n.eps, n.x, n.r, n.w, n.s, n.y, n.rstd);
      return true;
    };
    if (n.D == 512) return run(warp_norm_kernel<8, 2, T, Stat<T>>);
    if (n.D == 1024) return run(warp_norm_kernel<8, 4, T, Stat<T>>);
    if (n.D == 2048) return run(warp_norm_kernel<8, 8, T, Stat<T>>);
    if (n.D == 4096) return run(warp_norm_kernel<8, 16, T, Stat<T>>);
  }
  return false;
}

/// With g = dy * w: dx = ds + rstd * (g - x * rstd^2 * mean(g * x)). Each block sums dy * x * rstd
/// of its rows in shared memory and writes one row of part_PD.
template <int N, bool kShared, class T, class S>
__global__ void rms_norm_grad_kernel(int64_t rows, int64_t D, int64_t per_block, const T* dy_ND,
                                     const T* ds_ND, const T* x_ND, const T* w_D, const S* rstd_N,
                                     T* dx_ND, Compute<T>* part_PD) {
  using C = Compute<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* dw = reinterpret_cast<C*>(shared);
  if constexpr (kShared) {
    for_row<N>(w_D, D, [&](int64_t d) {
      for (int j = 0; j < N; ++j) dw[d + j] = 0;
    });
  }
  const int64_t first = blockIdx.x * per_block;
  const int64_t last = first + per_block < rows ? first + per_block : rows;
  for (int64_t n = first; n < last; ++n) {
    const int64_t at = n * D;
    const C rstd = rstd_N[n];
    C dot = 0;
    for_row<N>(w_D, D, [&](int64_t d) {
      const Vec<T, N> dy = load<N>(dy_ND + at + d);
      const Vec<T, N> x = load<N>(x_ND + at + d);
      const Vec<T, N> w = load<N>(w_D + d);
      for (int j = 0; j < N; ++j) dot += widen(dy.v[j]) * widen(w.v[j]) * widen(x.v[j]);
    });
    const C mean = block_reduce<SumOp>(dot) / static_cast<C>(D);
    const C slope = rstd * rstd * mean;
    for_row<N>(w_D, D, [&](int64_t d) {
      const Vec<T, N> dy = load<N>(dy_ND + at + d);
      const Vec<T, N> x = load<N>(x_ND + at + d);
      const Vec<T, N> w = load<N>(w_D + d);
      Vec<T, N> add{};
      if (ds_ND != nullptr) add = load<N>(ds_ND + at + d);
      Vec<T, N> dx;
      for (int j = 0; j < N; ++j) {
        const C grad = rstd * (widen(dy.v[j]) * widen(w.v[j]) - widen(x.v[j]) * slope);
        dx.v[j] = narrow<T>(ds_ND != nullptr ? grad + widen(add.v[j]) : grad);
        if constexpr (kShared) dw[d + j] += widen(dy.v[j]) * widen(x.v[j]) * rstd;
      }
      store<N>(dx_ND + at + d, dx);
    });
  }
  if constexpr (kShared) {
    for_row<N>(w_D, D, [&](int64_t d) {
      for (int j = 0; j < N; ++j) part_PD[blockIdx.x * D + d + j] = dw[d + j];
    });
  }
}

/// Sum over the block of a value a thread, in every thread, with one barrier: calls take turns
/// between two places, `turn` and the other.
template <class C>
__device__ __forceinline__ C quick_block_sum(C x, int turn) {
  __shared__ C parts[2][32];
  x = warp_sum(x);
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = x;
  __syncthreads();
  C all = parts[turn][0];
  for (int w = 1; w < warps; ++w) all += parts[turn][w];
  return all;
}

/// A thread's part of a row: what the gradient reads.
template <int N, class T>
struct RowPart {
  Vec<T, N> dy{}, x{}, ds{};
};

/// The same for rows of at most N elements a thread: weight and its gradient stay in registers, a
/// row is read once, and the next one is under way while this one is summed.
template <int N, bool kAdds, class T, class S>
__global__ void __launch_bounds__(1024)
    short_norm_grad_kernel(int64_t rows, int64_t D, int64_t per_block, const T* dy_ND,
                           const T* ds_ND, const T* x_ND, const T* w_D, const S* rstd_N, T* dx_ND,
                           Compute<T>* part_PD) {
  using C = Compute<T>;
  const int64_t d = static_cast<int64_t>(threadIdx.x) * N;
  const bool active = d < D;
  const auto read = [&](int64_t n) {
    RowPart<N, T> part;
    if (!active) return part;
    part.dy = load<N>(dy_ND + n * D + d);
    part.x = load<N>(x_ND + n * D + d);
    if constexpr (kAdds) part.ds = load<N>(ds_ND + n * D + d);
    return part;
  };
  Vec<T, N> w{};
  if (active) w = load<N>(w_D + d);
  C dw[N] = {};
  const int64_t first = blockIdx.x * per_block;
  const int64_t last = first + per_block < rows ? first + per_block : rows;
  RowPart<N, T> next = read(first);
  for (int64_t n = first; n < last; ++n) {
    const RowPart<N, T> row = next;
    if (n + 1 < last) next = read(n + 1);
    const C rstd = rstd_N[n];
    C dot = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) dot += widen(row.dy.v[j]) * widen(w.v[j]) * widen(row.x.v[j]);
    const C mean = quick_block_sum(dot, static_cast<int>(n & 1)) / static_cast<C>(D);
    const C slope = rstd * rstd * mean;
    Vec<T, N> dx;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C dy = widen(row.dy.v[j]);
      const C x = widen(row.x.v[j]);
      const C grad = rstd * (dy * widen(w.v[j]) - x * slope);
      dx.v[j] = narrow<T>(kAdds ? grad + widen(row.ds.v[j]) : grad);
      dw[j] += dy * x * rstd;
    }
    if (active) store<N>(dx_ND + n * D + d, dx);
  }
  if (!active) return;
  for (int j = 0; j < N; ++j) part_PD[blockIdx.x * D + d + j] = dw[j];
}

/// Rows of a warp whose reads are under way.
constexpr int kStages = 2;

/// dy, x and, where it adds, ds of a row.
template <int kParts, bool kAdds>
struct NormStage {
  static constexpr int kTensors = kAdds ? 3 : 2;
  uint4 v[kTensors][kParts][32];
};
/// Waits for the calling thread's copies, all but the newest kLeft groups.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// The same for rows of 32 * N * kParts elements: a warp a row, whose tensors come through shared
/// memory, so that the next rows are under way while one is summed; a lane reads there only what
/// it asked for itself. No barrier but at the end, where the block's threads add the warps' parts
/// of dw in order.
template <int N, int kParts, bool kAdds, class T, class S>
__global__ void __launch_bounds__(32 * kWarpRows, 1)
    warp_norm_grad_kernel(int64_t rows, int64_t per_block, const T* dy_ND, const T* ds_ND,
                          const T* x_ND, const T* w_D, const S* rstd_N, T* dx_ND,
                          Compute<T>* part_PD) {
  using C = Compute<T>;
  static_assert(N * sizeof(T) == sizeof(uint4));
  constexpr int kStride = 32 * N;
  constexpr int D = kStride * kParts;
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto* stages = reinterpret_cast<NormStage<kParts, kAdds>*>(shared) + warp * kStages;
  const int64_t first = blockIdx.x * per_block;
  const int64_t last = first + per_block < rows ? first + per_block : rows;
  const auto fetch = [&](int64_t n, int stage) {
    if (n < last) {
      const int64_t at = n * D + lane * N;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        auto& to = stages[stage].v;
        __pipeline_memcpy_async(&to[0][p][lane], dy_ND + at + p * kStride, sizeof(uint4));
        __pipeline_memcpy_async(&to[1][p][lane], x_ND + at + p * kStride, sizeof(uint4));
        if constexpr (kAdds)
          __pipeline_memcpy_async(&to[2][p][lane], ds_ND + at + p * kStride, sizeof(uint4));
      }
    }
    __pipeline_commit();
  };
  const auto staged = [&](int stage, int tensor, int p) {
    return *reinterpret_cast<const Vec<T, N>*>(&stages[stage].v[tensor][p][lane]);
  };
  C dw[kParts][N] = {};
  int64_t n = first + warp;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(n + stage * kWarpRows, stage);
  S next_rstd = n < last ? rstd_N[n] : S(0);
  for (int stage = 0; n < last; n += kWarpRows, stage = (stage + 1) % kStages) {
    const C rstd = next_rstd;
    if (n + kWarpRows < last) next_rstd = rstd_N[n + kWarpRows];
    wait_for_copies<kStages - 1>();
    Vec<T, N> dy[kParts];
    Vec<T, N> x[kParts];
    C dot = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      dy[p] = staged(stage, 0, p);
      x[p] = staged(stage, 1, p);
      const Vec<T, N> w = load<N>(w_D + lane * N + p * kStride);
#pragma unroll
      for (int j = 0; j < N; ++j) dot += widen(dy[p].v[j]) * widen(w.v[j]) * widen(x[p].v[j]);
    }
    const C slope = rstd * rstd * (warp_sum(dot) / static_cast<C>(D));
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const Vec<T, N> w = load<N>(w_D + lane * N + p * kStride);
      Vec<T, N> ds{};
      if constexpr (kAdds) ds = staged(stage, 2, p);
      Vec<T, N> dx;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const C g = widen(dy[p].v[j]);
        const C grad = rstd * (g * widen(w.v[j]) - widen(x[p].v[j]) * slope);
        if constexpr (kAdds) {
          dx.v[j] = narrow<T>(grad + widen(ds.v[j]));
        } else {
          dx.v[j] = narrow<T>(grad);
        }
        dw[p][j] += g * widen(x[p].v[j]) * rstd;
      }
      store<N>(dx_ND + n * D + lane * N + p * kStride, dx);
    }
    fetch(n + kStages * kWarpRows, stage);
  }
  wait_for_copies<0>();
  __syncthreads();
  // The stages' bytes are free: a row of sums a warp.
  static_assert(sizeof(C) * D <= sizeof(NormStage<kParts, kAdds>) * kStages);
  auto* sums_WD = reinterpret_cast<C*>(shared);
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int j = 0; j < N; ++j) sums_WD[warp * D + lane * N + p * kStride + j] = dw[p][j];
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < D; d += static_cast<int>(blockDim.x)) {
    C sum = sums_WD[d];
#pragma unroll
    for (int w = 1; w < kWarpRows; ++w) sum += sums_WD[w * D + d];
    part_PD[static_cast<int64_t>(blockIdx.x) * D + d] = sum;
  }
}

constexpr int kColumns = 32;
constexpr int kGroups = 32;

/// A block 32 columns: 32 groups of parts, then the groups in order.
template <class T>
__global__ void sum_parts_kernel(int64_t parts, int64_t D, const Compute<T>* part_PD, T* dw_D) {
  __shared__ Compute<T> sums[kGroups][kColumns];
  const int64_t d = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  Compute<T> sum = 0;
  if (d < D) {
    for (int64_t p = threadIdx.y; p < parts; p += kGroups) sum += part_PD[p * D + d];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || d >= D) return;
  sum = 0;
  for (int g = 0; g < kGroups; ++g) sum += sums[g][threadIdx.x];
  dw_D[d] = narrow<T>(sum);
}

/// For rows too long for shared memory: a thread a column.
template <class T, class S>
__global__ void column_grad_kernel(int64_t rows, int64_t D, const T* dy_ND, const T* x_ND,
                                   const S* rstd_N, T* dw_D) {
  const int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (d >= D) return;
  Compute<T> sum = 0;
  for (int64_t n = 0; n < rows; ++n)
    sum += widen(dy_ND[n * D + d]) * widen(x_ND[n * D + d]) * static_cast<Compute<T>>(rstd_N[n]);
  dw_D[d] = narrow<T>(sum);
}

template <class T>
void add_norm(Lowering& low, const Op& op) {
  const bool adds = op.kind == OpKind::kAddRmsNorm;
  const ValueId x = op.operands[0];
  const ValueId r = adds ? op.operands[1] : x;
  const ValueId w = op.operands[adds ? 2 : 1];
  const ValueId s = op.results[0];
  const ValueId y = op.results[adds ? 1 : 0];
  const ValueId rstd = op.results[adds ? 2 : 1];
  const int64_t D = row_length(low.type(x));
  const int64_t rows = num_rows(low.type(x));
  const auto eps = static_cast<Compute<T>>(op.attrs.f64("eps"));
  const bool rounded = is_rounded_when_made(low, op);
  by_lanes<T>(D, [&](auto lanes) {
    constexpr int N = decltype(lanes)::value;
    low.add([=](const Frame& f) -> Status {
      if (rows == 0) return {};
      Norm<T> n{rows, D, eps, f.at<T>(x), adds ? f.at<T>(r) : nullptr, f.at<T>(w), f.at<T>(s)};
      n.y = rounded ? nullptr : f.at<T>(y);
      n.rstd = f.at<Stat<T>>(rstd);
      if (!launch_warp_norm(n, f.stream)) {
        rms_norm_kernel<N><<<static_cast<unsigned>(rows), threads_for(D, N), 0, f.stream>>>(
            D, eps, n.x, n.r, n.w, n.s, n.y, n.rstd);
      }
      return launched();
    });
  });
}

/// What a norm's gradient is launched with.
struct NormGrad {
  ValueId dy, ds, x, w, rstd, dx, dw;
  bool adds = false;
  int64_t D = 0, rows = 0, per_block = 0, parts = 0;
};

/// Does warp_norm_grad_kernel have the row length?
template <class T>
bool has_warp_rows(int64_t D) {
  return sizeof(T) == 2 && (D == 1024 || D == 2048);
}

template <int kParts, bool kAdds, class T>
Status launch_warp_rows(const NormGrad& g, const Frame& f, Compute<T>* part) {
  using S = Stat<T>;
  const auto kernel = warp_norm_grad_kernel<8, kParts, kAdds, T, S>;
  constexpr int kBytes = kStages * kWarpRows * int{sizeof(NormStage<kParts, kAdds>)};
  SGA_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<static_cast<unsigned>(g.parts), 32 * kWarpRows, kBytes, f.stream>>>(
      g.rows, g.per_block, f.at<T>(g.dy), kAdds ? f.at<T>(g.ds) : nullptr, f.at<T>(g.x),
      f.at<T>(g.w), f.at<S>(g.rstd), f.at<T>(g.dx), part);
  return launched();
}

/// Pre: has_warp_rows.
template <class T>
Status run_warp_rows(const NormGrad& g, const Frame& f, Compute<T>* part) {
  if constexpr (sizeof(T) == 2) {
    if (g.D == 1024)
      return g.adds ? launch_warp_rows<4, true, T>(g, f, part)
                    : launch_warp_rows<4, false, T>(g, f, part);
    return g.adds ? launch_warp_rows<8, true, T>(g, f, part)
                  : launch_warp_rows<8, false, T>(g, f, part);
  } else {
    return internal_error("rows of 16-bit numbers only");
  }
}

template <int N, class T>
Status launch_rows(const NormGrad& g, const Frame& f, Compute<T>* part) {
  if (has_warp_rows<T>(g.D)) return run_warp_rows<T>(g, f, part);
  using S = Stat<T>;
  const auto blocks = static_cast<unsigned>(g.parts);
  const int64_t shared = g.D * static_cast<int64_t>(sizeof(Compute<T>));
  const int threads = threads_for(g.D, N);
  const auto run = [&](auto kernel, int64_t bytes) {
    kernel<<<blocks, threads, static_cast<size_t>(bytes), f.stream>>>(
        g.rows, g.D, g.per_block, f.at<T>(g.dy), g.adds ? f.at<T>(g.ds) : nullptr, f.at<T>(g.x),
        f.at<T>(g.w), f.at<S>(g.rstd), f.at<T>(g.dx), part);
  };
  if (g.D <= int64_t{threads} * N && shared <= kMostSharedBytes) {
    g.adds ? run(short_norm_grad_kernel<N, true, T, S>, 0)
           : run(short_norm_grad_kernel<N, false, T, S>, 0);
  } else if (shared <= kMostSharedBytes) {
    run(rms_norm_grad_kernel<N, true, T, S>, shared);
  } else {
    run(rms_norm_grad_kernel<N, false, T, S>, 0);
  }
  return launched();
}

template <class T>
void add_norm_grad(Lowering& low, const Op& op) {
  using C = Compute<T>;
  NormGrad g;
  g.adds = op.kind == OpKind::kAddRmsNormGrad;
  const size_t base = g.adds ? 2 : 1;
  g.dy = op.operands[0];
  g.ds = op.operands[1];
  g.x = op.operands[base];
  g.w = op.operands[base + 1];
  g.rstd = op.operands[base + 2];
  g.dx = op.results[0];
  g.dw = op.results[1];
  g.D = row_length(low.type(g.x));
  g.rows = num_rows(low.type(g.x));
  const int64_t blocks = has_warp_rows<T>(g.D) ? kWarpGradBlocks : kGradBlocks;
  g.per_block = std::max<int64_t>(ceil_div(g.rows, blocks), 1);
  g.parts = ceil_div(g.rows, g.per_block);
  const int64_t shared = g.D * static_cast<int64_t>(sizeof(C));
  const bool fits = shared <= kMostSharedBytes;
  if (fits) low.need_scratch(g.parts * shared);
  by_lanes<T>(g.D, [&](auto lanes) {
    constexpr int N = decltype(lanes)::value;
    low.add([=](const Frame& f) -> Status {
      auto* part = reinterpret_cast<C*>(f.scratch);
      if (g.D == 0) return {};
      if (g.parts > 0) SGA_TRY((launch_rows<N, T>(g, f, part)));
      if (fits) {
        sum_parts_kernel<T><<<blocks_for(g.D, kColumns), dim3(kColumns, kGroups), 0, f.stream>>>(
            g.parts, g.D, part, f.at<T>(g.dw));
      } else {
        column_grad_kernel<<<blocks_for(g.D, 64), 64, 0, f.stream>>>(
            g.rows, g.D, f.at<T>(g.dy), f.at<T>(g.x), f.at<Stat<T>>(g.rstd), f.at<T>(g.dw));
      }
      return launched();
    });
  });
}

}  // namespace

Status lower_rms_norm(Lowering& low, const Op& op) {
  const bool known = by_float(low.type(op.operands[0]).dtype,
                              [&](auto tag) { add_norm<typename decltype(tag)::type>(low, op); });
  return known ? Status() : low.no_kernel(op);
}

Status lower_rms_norm_grad(Lowering& low, const Op& op) {
  const bool known = by_float(low.type(op.operands[0]).dtype, [&](auto tag) {
    add_norm_grad<typename decltype(tag)::type>(low, op);
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
