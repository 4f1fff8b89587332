#pragma once
// What the two kernels of attention's gradient on Hopper share: attention_backward_keys.cuh makes
// dK and dV of a block of keys, attention_backward_queries.cuh dQ of a block of queries. Both
// compute P = exp(scale Q K^T - lse) and dS = P (dO V^T - delta) anew, tile by tile, so that
// nothing of T x T is kept and every sum has one order. After Dao, "FlashAttention-2" (2023) and
// Shah et al., "FlashAttention-3" (2024): the products of a warpgroup run on their own while it
// takes the exponentials of another tile, and P and dS go from accumulators to operands in
// registers. Letters: B batch, T time, H query heads, G key-value heads, R = H / G, K head dim.
#include "kernels/cuda/attention_hopper.cuh"

namespace sgactor::kernels::cuda::hopper {

/// Warpgroups that compute, in a block of threads.
inline constexpr int kWarpgroups = 2;
inline constexpr int kBlockThreads = (kWarpgroups + 1) * kWarpgroup;

struct GradientMaps {
  CUtensorMap q, k, v, d_o;
};

struct GradientArguments {
  /// [B, H, padded]: log2(e) times the log-sum-exp, infinite behind T; rowsum(dO O), 0 behind T.
  const float* lse2 = nullptr;
  const float* delta = nullptr;
  __nv_bfloat16* dq = nullptr;
  __nv_bfloat16* dk = nullptr;
  __nv_bfloat16* dv = nullptr;
  int B = 0, T = 0, H = 0, G = 0;
  int padded = 0;
  float scale = 1;
  float scale_log2 = 1;
  int blocks = 0;   ///< of a head
  int section = 1;  ///< heads of keys whose blocks run side by side: their data stays in the L2
};

/// What a block of threads works on: of a section, the blocks with the most tiles first.
struct Place {
  int block, b, g;
  __device__ explicit Place(const GradientArguments& a) {
    const int pairs = a.B * a.G;
    const int in_section = a.section * a.blocks;
    const int section = blockIdx.x / in_section;
    const int first = section * a.section;
    const int width = min(a.section, pairs - first);
    const int index = blockIdx.x - section * in_section;
    block = index / width;
    b = (first + index % width) / a.G;
    g = (first + index % width) % a.G;
  }
};

/// Where a thread is in a ring: a stage, and the parity of its fill.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// A ring of stages, filled by the producer warp, read by all warpgroups.
template <int K, int kStages>
struct Ring {
  char x[kStages][K * 128];
  char y[kStages][K * 128];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], 4 * kWarpgroups);
    }
  }
  __device__ void wait_full(Cursor<kStages> at) { wait(&full[at.stage], at.parity); }
  /// Of the first fill too: the parity before a barrier's first phase counts as ended.
  __device__ void wait_empty(Cursor<kStages> at) { wait(&empty[at.stage], at.parity ^ 1); }
  /// By every warp of every warpgroup, once a fill.
  __device__ void release(int stage) { arrive_as_warp(&empty[stage]); }
};

/// Writes a warpgroup's 64 rows of K numbers to [B, T, heads, K]; rows from `rows` on are left.
template <int kNumbers>
__device__ __forceinline__ void write_rows(__nv_bfloat16* to, int64_t stride, int rows,
                                           const float (&x)[kNumbers], float factor) {
  const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= rows) continue;
    __nv_bfloat16* line = to + (row + 8 * half) * stride + column;
#pragma unroll
    for (int j = 0; j < kNumbers / 4; ++j)
      *reinterpret_cast<uint32_t*>(line + 8 * j) =
          pack(factor * x[4 * j + 2 * half], factor * x[4 * j + 2 * half + 1]);
  }
}

/// 64 rows of A by the transpose of 64 rows of B, both tiles of K columns.
template <int K>
__device__ __forceinline__ void multiply_rows(float (&d)[32], uint32_t a, uint32_t b) {
  multiply_fresh<0>(d, a, b);
#pragma unroll
  for (int i = 1; i < K / 16; ++i) multiply<0>(d, a + column_step(i), b + column_step(i));
}

}  // namespace sgactor::kernels::cuda::hopper
