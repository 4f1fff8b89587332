#pragma once
// The two kernels of attention's gradient on Hopper: dK and dV of a block of keys, dQ of a block of
// queries. Both compute P = exp(scale Q K^T - lse) and dS = P (dO V^T - delta) anew, tile by tile,
// so that nothing of T x T is kept and every sum has one order. After Dao, "FlashAttention-2"
// (2023) and Shah et al., "FlashAttention-3" (2024): the products of a warpgroup run on their own
// while it takes the exponentials of another tile, and P and dS go from accumulators to operands in
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
  __device__ void release(int stage) {
    if (threadIdx.x % 32 == 0) arrive(&empty[stage]);
  }
};

/// dS from P and dO V^T in accumulators of keys x queries: a thread's numbers lie in 16 columns.
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

template <int K, int kStages>
struct QueryShared {
  char q[2][kWarpgroups][K * 128];
  char d_o[2][kWarpgroups][K * 128];
  Ring<K, kStages> ring;  ///< x: K, y: V
  alignas(16) float lse2[2][kWarpgroups * kTile];
  float delta[2][kWarpgroups * kTile];
  uint64_t full[2];
  uint64_t empty[2];
};

/// dQ of kWarpgroups * 64 queries of each head of a group; a warpgroup owns 64 of them. Tiles of 64
/// keys pass by.
template <int K, int kStages, bool kCausal>
struct QueryGradient {
  using Shared = QueryShared<K, kStages>;

  static __device__ void produce(const GradientMaps& maps, const GradientArguments& a, Shared& s,
                                 Place at, int tiles) {
    const int R = a.H / a.G;
    const int t = at.block * kWarpgroups * kTile;
    const int lines = min(kWarpgroups * kTile, a.padded - t);
    Cursor<kStages> n;
    for (int r = 0; r < R; ++r) {
      const int h = at.g * R + r;
      const int i = r % 2;
      if (r >= 2) wait(&s.empty[i], (r / 2 - 1) & 1);
      const int64_t line = static_cast<int64_t>(at.b * a.H + h) * a.padded + t;
      expect_bytes(&s.full[i], 2 * kWarpgroups * K * 128 + 2 * lines * 4);
      for (int w = 0; w < kWarpgroups; ++w) {
        fetch_rows<K>(s.q[i][w], maps.q, h, t + w * kTile, at.b, &s.full[i]);
        fetch_rows<K>(s.d_o[i][w], maps.d_o, h, t + w * kTile, at.b, &s.full[i]);
      }
      fetch_line(s.lse2[i], a.lse2 + line, lines * 4, &s.full[i]);
      fetch_line(s.delta[i], a.delta + line, lines * 4, &s.full[i]);
      for (int tile = 0; tile < tiles; ++tile, n.advance()) {
        const int stage = n.stage;
        s.ring.wait_empty(n);
        uint64_t* full = &s.ring.full[stage];
        expect_bytes(full, 2 * K * 128);
        fetch_rows<K>(s.ring.x[stage], maps.k, at.g, tile * kTile, at.b, full);
        fetch_rows<K>(s.ring.y[stage], maps.v, at.g, tile * kTile, at.b, full);
      }
    }
  }

  const GradientArguments& a;
  Shared& shared;
  Cursor<kStages> n;         ///< the tile at hand
  int tile = 0;              ///< of keys
  int query;                 ///< the first one of this warpgroup
  uint32_t q_rows, do_rows;  ///< operands
  uint32_t ds_rows[4][4];
  float lse2[2], delta[2];
  float s[32], p[32], dp[32], dq[K / 2];

  __device__ QueryGradient(const GradientArguments& a, Shared& shared, int query)
      : a(a), shared(shared), query(query) {}

  __device__ uint32_t operand(const char (&x)[kStages][K * 128], int stage) const {
    return tile_operand(shared_address(x[0])) + stage * (K * 128 >> 4);
  }
  __device__ void start_scores() {
    begin_products();
    multiply_rows<K>(s, q_rows, operand(shared.ring.x, n.stage));
    commit_products();
  }
  __device__ void start_probability_gradients() {
    begin_products();
    multiply_rows<K>(dp, do_rows, operand(shared.ring.y, n.stage));
    commit_products();
  }
  __device__ void start_sum(int stage) {
    const uint32_t k = operand(shared.ring.x, stage);
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<1>(dq, ds_rows[i], k + row_step(i));
    commit_products();
  }
  __device__ void take_probabilities() {
    pin(s);
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = exp2_of(fmaf(s[i], a.scale_log2, -lse2[i / 2 % 2]));
    // Keys behind the query or the last time: only in a warpgroup's last tile.
    const int limit = kCausal ? query - tile * kTile : a.T - tile * kTile;
    if (limit < kTile) {
      const int row =
          kCausal ? static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) : -1;
      const int column = 2 * (threadIdx.x % 4);
#pragma unroll
      for (int i = 0; i < 32; ++i)
        if (i / 4 * 8 + column + i % 2 > limit + row + (kCausal ? i / 2 % 2 * 8 : 0)) p[i] = 0;
    }
  }
  __device__ void take_score_gradients() {
    pin(dp);
    float ds[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) ds[i] = p[i] * (dp[i] - delta[i / 2 % 2]);
    pack_columns(ds_rows, ds);
  }
  __device__ void advance() {
    n.advance();
    ++tile;
    shared.ring.wait_full(n);
  }
  /// As in KeyGradient.
  __device__ void run_ahead(int count) {
    start_scores();
    start_probability_gradients();
    wait_products<1>();
    take_probabilities();
    int before = n.stage;
    if (count > 1) advance();
    wait_products<0>();
    for (int i = 1; i < count; ++i) {
      start_scores();
      take_score_gradients();
      start_sum(before);
      start_probability_gradients();
      wait_products<2>();
      take_probabilities();
      wait_products<1>();
      shared.ring.release(before);
      before = n.stage;
      if (i + 1 < count) advance();
      wait_products<0>();
    }
    take_score_gradients();
    start_sum(before);
  }
  /// One head: `seen` of `tiles` tiles.
  __device__ void run(int seen, int tiles) {
#pragma unroll
    for (int i = 0; i < K / 2; ++i) dq[i] = 0;
    pin(dq);
    tile = 0;
    shared.ring.wait_full(n);
    run_ahead(seen);
    wait_products<0>();
    pin(dq);
    shared.ring.release(n.stage);
    n.advance();
    for (int i = seen; i < tiles; ++i, n.advance()) {
      shared.ring.wait_full(n);
      shared.ring.release(n.stage);
    }
  }
  __device__ void consume(Place at, int warpgroup, int tiles) {
    const int R = a.H / a.G;
    const int64_t stride = static_cast<int64_t>(a.H) * K;
    const int row = warpgroup * kTile + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const int seen = kCausal ? min(query / kTile + 1, tiles) : tiles;
    for (int r = 0; r < R; ++r) {
      const int i = r % 2;
      wait(&shared.full[i], r / 2 & 1);
      q_rows = tile_operand(shared_address(shared.q[i][warpgroup]));
      do_rows = tile_operand(shared_address(shared.d_o[i][warpgroup]));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        lse2[half] = shared.lse2[i][row + 8 * half];
        delta[half] = shared.delta[i][row + 8 * half];
      }
      run(seen, tiles);
      if (threadIdx.x % 32 == 0) arrive(&shared.empty[i]);
      const int64_t to = (static_cast<int64_t>(at.b) * a.T + query) * stride + (at.g * R + r) * K;
      write_rows(a.dq + to, stride, a.T - query, dq, a.scale);
    }
  }
};

template <int K, int kStages, bool kCausal>
__global__ void __launch_bounds__(kBlockThreads, 1)
    query_gradient_kernel(const __grid_constant__ GradientMaps maps,
                          const __grid_constant__ GradientArguments a) {
  using Gradient = QueryGradient<K, kStages, kCausal>;
  using Shared = typename Gradient::Shared;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    shared.ring.init();
    for (int i = 0; i < 2; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], 4 * kWarpgroups);
    }
    publish_barriers();
  }
  __syncthreads();
  Place at(a);
  at.block = a.blocks - 1 - at.block;  // the last queries see the most keys
  const int all = (a.T + kTile - 1) / kTile;
  const int tiles = kCausal ? min((at.block + 1) * kWarpgroups, all) : all;
  const int warpgroup = this_warpgroup();
  if (warpgroup == kWarpgroups) {
    give_registers<24>();
    if (threadIdx.x % kWarpgroup == 0) Gradient::produce(maps, a, shared, at, tiles);
  } else {
    take_registers<240>();
    Gradient own(a, shared, (at.block * kWarpgroups + warpgroup) * kTile);
    own.consume(at, warpgroup, tiles);
  }
}

}  // namespace sgactor::kernels::cuda::hopper
