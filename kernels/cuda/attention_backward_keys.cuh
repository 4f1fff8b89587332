#pragma once
// dK and dV of attention. Letters as in attention_backward_parts.cuh.
#include "kernels/cuda/attention_backward_parts.cuh"

namespace sgactor::kernels::cuda::hopper {

/// P from scores in accumulators of keys x queries: a thread's numbers lie in 16 columns.
__device__ __forceinline__ void probabilities_of_columns(float (&p)[32], const float (&s)[32],
                                                         const float* lse2, float scale_log2,
                                                         bool diagonal) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 l = *reinterpret_cast<const float2*>(lse2 + 8 * j + column);
    p[4 * j] = exp2_of(fmaf(s[4 * j], scale_log2, -l.x));
    p[4 * j + 1] = exp2_of(fmaf(s[4 * j + 1], scale_log2, -l.y));
    p[4 * j + 2] = exp2_of(fmaf(s[4 * j + 2], scale_log2, -l.x));
    p[4 * j + 3] = exp2_of(fmaf(s[4 * j + 3], scale_log2, -l.y));
  }
  if (diagonal) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (row + i / 2 % 2 * 8 > i / 4 * 8 + column + i % 2) p[i] = 0;
  }
}

__device__ __forceinline__ void score_gradients_of_columns(float (&ds)[32], const float (&dp)[32],
                                                           const float (&p)[32],
                                                           const float* delta) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 d = *reinterpret_cast<const float2*>(delta + 8 * j + column);
    ds[4 * j] = p[4 * j] * (dp[4 * j] - d.x);
    ds[4 * j + 1] = p[4 * j + 1] * (dp[4 * j + 1] - d.y);
    ds[4 * j + 2] = p[4 * j + 2] * (dp[4 * j + 2] - d.x);
    ds[4 * j + 3] = p[4 * j + 3] * (dp[4 * j + 3] - d.y);
  }
}

template <int K, int kStages>
struct KeyShared {
  char k[kWarpgroups][K * 128];
  char v[kWarpgroups][K * 128];
  Ring<K, kStages> ring;  ///< x: Q, y: dO
  alignas(16) float lse2[kStages][kTile];
  float delta[kStages][kTile];
  uint64_t fixed;
};

/// dK and dV of kWarpgroups * 64 keys of a head of keys; a warpgroup owns 64 of them. Tiles of 64
/// queries of the group's heads, in order, pass by.
template <int K, int kStages, bool kAhead, bool kCausal>
struct KeyGradient {
  using Shared = KeyShared<K, kStages>;

  static __device__ void produce(const GradientMaps& maps, const GradientArguments& a, Shared& s,
                                 Place at, int first, int tiles) {
    expect_bytes(&s.fixed, 2 * kWarpgroups * K * 128);
    for (int w = 0; w < kWarpgroups; ++w) {
      const int t = (at.block * kWarpgroups + w) * kTile;
      fetch_rows<K>(s.k[w], maps.k, at.g, t, at.b, &s.fixed);
      fetch_rows<K>(s.v[w], maps.v, at.g, t, at.b, &s.fixed);
    }
    const int R = a.H / a.G;
    Cursor<kStages> n;
    for (int h = at.g * R; h < (at.g + 1) * R; ++h) {
      const int64_t line = static_cast<int64_t>(at.b * a.H + h) * a.padded;
      for (int tile = first; tile < tiles; ++tile, n.advance()) {
        const int i = n.stage;
        s.ring.wait_empty(n);
        uint64_t* full = &s.ring.full[i];
        expect_bytes(full, 2 * K * 128 + 2 * kTile * 4);
        fetch_rows<K>(s.ring.x[i], maps.q, h, tile * kTile, at.b, full);
        fetch_line(s.lse2[i], a.lse2 + line + tile * kTile, kTile * 4, full);
        fetch_rows<K>(s.ring.y[i], maps.d_o, h, tile * kTile, at.b, full);
        fetch_line(s.delta[i], a.delta + line + tile * kTile, kTile * 4, full);
      }
    }
  }

  const GradientArguments& a;
  Shared& shared;
  int first, tiles;   ///< of a head
  int skip;           ///< the first tiles of a head, which this warpgroup's keys do not see
  Cursor<kStages> n;  ///< the tile at hand
  int tile = 0;
  uint32_t k_rows, v_rows;  ///< operands
  uint32_t p_rows[4][4], ds_rows[4][4];
  float s[32], p[32], dp[32], dk[K / 2], dv[K / 2];

  __device__ KeyGradient(const GradientArguments& a, Shared& shared, int first, int tiles)
      : a(a), shared(shared), first(first), tiles(tiles) {}

  __device__ void pass(int count) {
    for (int i = 0; i < count; ++i, n.advance()) {
      shared.ring.wait_full(n);
      shared.ring.release(n.stage);
    }
  }
  /// Past tiles of no use, from the first tile of a head.
  __device__ void pass_unseen() {
    pass(skip);
    tile += skip;
  }
  __device__ void advance() {
    n.advance();
    if (++tile == tiles) {
      tile = first;
      pass_unseen();
    }
    shared.ring.wait_full(n);
  }
  __device__ uint32_t operand(const char (&x)[kStages][K * 128], int stage) const {
    return tile_operand(shared_address(x[0])) + stage * (K * 128 >> 4);
  }
  __device__ void start_scores() {
    begin_products();
    multiply_rows<K>(s, k_rows, operand(shared.ring.x, n.stage));
    commit_products();
  }
  __device__ void start_probability_gradients() {
    begin_products();
    multiply_rows<K>(dp, v_rows, operand(shared.ring.y, n.stage));
    commit_products();
  }
  __device__ void start_sums(int stage) {
    const uint32_t d_o = operand(shared.ring.y, stage);
    const uint32_t q = operand(shared.ring.x, stage);
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<1>(dv, p_rows[i], d_o + row_step(i));
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<1>(dk, ds_rows[i], q + row_step(i));
    commit_products();
  }
  /// Of the tile at hand, whose scores have come.
  __device__ void take_probabilities() {
    pin(s);
    probabilities_of_columns(p, s, shared.lse2[n.stage], a.scale_log2,
                             kCausal && tile == first + skip);
  }
  /// Of the tile in `stage`, whose P dO V^T has come.
  __device__ void take_score_gradients(int stage) {
    pin(dp);
    float ds[32];
    score_gradients_of_columns(ds, dp, p, shared.delta[stage]);
    pack_columns(ds_rows, ds);
  }
  /// Products run while this warpgroup computes: the scores of the next tile while it makes dS,
  /// sums and dO V^T while it makes the next P.
  __device__ void run_ahead(int count) {
    start_scores();
    start_probability_gradients();
    wait_products<1>();
    take_probabilities();
    pack_columns(p_rows, p);
    pin(p_rows);
    int before = n.stage;
    if (count > 1) advance();
    wait_products<0>();
    for (int i = 1; i < count; ++i) {
      start_scores();
      take_score_gradients(before);
      start_sums(before);
      start_probability_gradients();
      wait_products<2>();
      take_probabilities();
      wait_products<1>();
      pack_columns(p_rows, p);
      pin(p_rows);
      shared.ring.release(before);
      before = n.stage;
      if (i + 1 < count) advance();
      wait_products<0>();
    }
    take_score_gradients(before);
    start_sums(before);
  }
  /// Where registers are short: the other warpgroup fills the gaps.
  __device__ void run_plainly(int count) {
    for (int i = 0; i < count; ++i) {
      if (i > 0) advance();
      start_scores();
      start_probability_gradients();
      wait_products<1>();
      take_probabilities();
      pack_columns(p_rows, p);
      pin(p_rows);
      wait_products<0>();
      take_score_gradients(n.stage);
      start_sums(n.stage);
      wait_products<0>();
      shared.ring.release(n.stage);
    }
  }
  __device__ void run(int count) {
    tile = first;
    pass_unseen();
    shared.ring.wait_full(n);
    if constexpr (kAhead)
      run_ahead(count);
    else
      run_plainly(count);
    wait_products<0>();
    pin(dk);
    pin(dv);
  }
};

template <int K, int kStages, bool kAhead, bool kCausal>
__global__ void __launch_bounds__(kBlockThreads, 1)
    key_gradient_kernel(const __grid_constant__ GradientMaps maps,
                        const __grid_constant__ GradientArguments a) {
  using Gradient = KeyGradient<K, kStages, kAhead, kCausal>;
  using Shared = typename Gradient::Shared;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    shared.ring.init();
    init_barrier(&shared.fixed, 1);
    publish_barriers();
  }
  __syncthreads();
  const Place at(a);
  const int tiles = (a.T + kTile - 1) / kTile;
  const int first = kCausal ? at.block * kWarpgroups : 0;
  const int warpgroup = this_warpgroup();
  if (warpgroup == kWarpgroups) {
    give_registers<24>();
    if (threadIdx.x % kWarpgroup == 0) Gradient::produce(maps, a, shared, at, first, tiles);
  } else {
    take_registers<240>();
    const int key = (at.block * kWarpgroups + warpgroup) * kTile;
    const int R = a.H / a.G;
    Gradient own(a, shared, first, tiles);
    if (key >= a.T) {
      own.pass(R * (tiles - first));
      return;
    }
    own.skip = kCausal ? warpgroup : 0;
#pragma unroll
    for (int i = 0; i < K / 2; ++i) own.dk[i] = own.dv[i] = 0;
    pin(own.dk);
    pin(own.dv);
    wait(&shared.fixed, 0);
    own.k_rows = tile_operand(shared_address(shared.k[warpgroup]));
    own.v_rows = tile_operand(shared_address(shared.v[warpgroup]));
    own.run(R * (tiles - first - own.skip));
    const int64_t stride = static_cast<int64_t>(a.G) * K;
    const int64_t to = (static_cast<int64_t>(at.b) * a.T + key) * stride + at.g * K;
    write_rows(a.dk + to, stride, a.T - key, own.dk, a.scale);
    write_rows(a.dv + to, stride, a.T - key, own.dv, 1);
  }
}

}  // namespace sgactor::kernels::cuda::hopper
