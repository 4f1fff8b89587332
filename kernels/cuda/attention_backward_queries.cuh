#pragma once
// dQ of attention. Letters as in attention_backward_parts.cuh.
#include "kernels/cuda/attention_backward_parts.cuh"

namespace sgactor::kernels::cuda::hopper {

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
      arrive_as_warp(&shared.empty[i]);
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
