// Attention without a T x T store: blocks of queries against blocks of keys, with a running maximum
// and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022). A block of scores keeps keys in rows and queries in lanes, which is the
// layout of a packed operand: probabilities go into the next product as they are. Letters: B batch,
// T time, H query heads, G key-value heads, K head dim; L queries and C keys of a block.
#include "kernels/cpu/lowering.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::ValueId;

/// Keys of a block; a multiple of the rows of every family's matmul kernel, so that blocks start
/// with a panel.
constexpr int64_t kKeys = 240;
/// Queries of a block at most.
constexpr int64_t kMaxQueries = 64;
// Fewer (batch, group) pairs than this leave threads idle: then dk, dv and dq are computed by
// separate, finer tasks, at the price of computing the scores twice.
constexpr int64_t kMinGroupTasks = 8;

int64_t lines(int64_t floats) { return round_up(floats, 16); }

struct Attention {
  const KernelTable* kernels = nullptr;
  int64_t B = 0, T = 0, H = 0, G = 0, K = 0;
  float scale = 1;
  bool causal = true;

  [[nodiscard]] int64_t block_queries() const { return kernels->gemm_columns; }
  [[nodiscard]] int64_t query_blocks() const { return ceil_div(T, block_queries()); }
  [[nodiscard]] int64_t key_blocks() const { return ceil_div(T, kKeys); }
  [[nodiscard]] int64_t heads_per_group() const { return H / G; }
  /// Offset of (b, t, head) in a [B, T, heads, K] tensor.
  [[nodiscard]] int64_t at(int64_t b, int64_t t, int64_t head, int64_t heads) const {
    return ((b * T + t) * heads + head) * K;
  }
  [[nodiscard]] int64_t depth_of(int64_t key) const { return std::min(kKeys, T - key); }

  // Operands packed once a (batch, group), all blocks behind each other.
  [[nodiscard]] int64_t padded_K() const { return round_up(K, kernels->gemm_rows); }
  [[nodiscard]] int64_t packed_rows() const { return lines(round_up(T, kernels->gemm_rows) * K); }
  [[nodiscard]] int64_t packed_columns() const { return lines(T * padded_K()); }
  /// Keys in rows: op(A) of the scores.
  void pack_keys(float* to, const float* x, int64_t b, int64_t g, int64_t key) const {
    kernels->pack_a(to + key * K, x + at(b, key, g, G), G * K, false, depth_of(key), K);
  }
  /// Head dim in rows: op(A) of the products over keys.
  void pack_dims(float* to, const float* x, int64_t b, int64_t g, int64_t key) const {
    kernels->pack_a(to + key * padded_K(), x + at(b, key, g, G), G * K, true, K, depth_of(key));
  }
  /// y_KL = or += x^T p over C keys from `key` on, x packed by pack_dims.
  void over_keys(float* y, const float* x, const float* p, int64_t key, int64_t C, int64_t L,
                 bool accumulate) const {
    const int64_t unit = kernels->gemm_rows;
    const float* block = x + key * padded_K();
    // Panel by panel: they are depth_of(key) deep, of which only C count.
    for (int64_t i = 0; i < K; i += unit) {
      kernels->gemm_packed(y + i * L, L, block + i * depth_of(key), p, std::min(unit, K - i), L, C,
                           accumulate);
    }
  }
};

/// One block of queries.
struct Queries {
  int64_t b, h, g;
  int64_t first;  ///< its time
  int64_t count;
  int64_t L;     ///< lanes: count, padded to the width of a panel
  int64_t seen;  ///< keys that its last query sees
};

Queries queries_of(const Attention& a, int64_t b, int64_t h, int64_t block) {
  Queries q{.b = b, .h = h, .g = h / a.heads_per_group()};
  q.first = block * a.block_queries();
  q.count = std::min(a.block_queries(), a.T - q.first);
  q.L = q.count <= a.block_queries() / 2 ? a.block_queries() / 2 : a.block_queries();
  q.seen = a.causal ? q.first + q.count : a.T;
  return q;
}

/// Keys of the block at `key` that the queries need, in whole panels unless T ends.
int64_t keys_needed(const Attention& a, const Queries& q, int64_t key) {
  return std::min(a.depth_of(key), round_up(q.seen - key, a.kernels->gemm_rows));
}

int64_t diagonal_of(const Attention& a, const Queries& q, int64_t key) {
  return a.causal ? key - q.first : -kKeys;
}

/// A thread's part of the scratch.
struct ThreadScratch {
  alignas(64) float s[kKeys * kMaxQueries];
  float dp[kKeys * kMaxQueries];
  float p_packed[kKeys * kMaxQueries];
  float max_L[kMaxQueries];  ///< lse in the backward
  float sum_L[kMaxQueries];  ///< delta in the backward
  float correction_L[kMaxQueries];
};

/// Behind it: blocks of queries, `stride` floats each.
struct ThreadView {
  ThreadScratch* base;
  float* q;  ///< q and do with K in depth (op(B) of the scores)
  float* d_o;
  float* q_rows;  ///< q and do with queries in depth (op(B) of dk and dv)
  float* d_o_rows;
  float* acc_KL;  ///< o or dq, transposed
};

int64_t query_floats(const Attention& a) { return lines(kMaxQueries * round_up(a.K, kMaxQueries)); }
int64_t thread_bytes(const Attention& a) {
  return static_cast<int64_t>(sizeof(ThreadScratch)) +
         5 * query_floats(a) * static_cast<int64_t>(sizeof(float));
}
ThreadView thread_view(const Attention& a, const Frame& f, int64_t shared_floats, int32_t thread) {
  std::byte* base =
      f.scratch + shared_floats * static_cast<int64_t>(sizeof(float)) + thread * thread_bytes(a);
  auto* blocks = reinterpret_cast<float*>(base + sizeof(ThreadScratch));
  const int64_t stride = query_floats(a);
  return {.base = reinterpret_cast<ThreadScratch*>(base),
          .q = blocks,
          .d_o = blocks + stride,
          .q_rows = blocks + 2 * stride,
          .d_o_rows = blocks + 3 * stride,
          .acc_KL = blocks + 4 * stride};
}

Attention attention_of(const Lowering& low, const Op& op, ValueId q, ValueId k) {
  const Shape& qs = low.type(q).shape;
  return {.kernels = &low.kernels(),
          .B = qs.dim(0),
          .T = qs.dim(1),
          .H = qs.dim(2),
          .G = low.type(k).shape.dim(2),
          .K = qs.dim(3),
          .scale = static_cast<float>(op.attrs.f64("scale")),
          .causal = op.attrs.flag("causal")};
}

struct Forward {
  Attention a;
  ValueId q, k, v, o, lse;

  [[nodiscard]] int64_t group_floats() const { return a.packed_rows() + a.packed_columns(); }
  [[nodiscard]] int64_t shared_floats() const { return a.B * a.G * group_floats(); }

  void pack(const Frame& f, int64_t bg, int64_t block) const {
    float* shared = reinterpret_cast<float*>(f.scratch) + bg * group_floats();
    a.pack_keys(shared, f.ptr<float>(k), bg / a.G, bg % a.G, block * kKeys);
    a.pack_dims(shared + a.packed_rows(), f.ptr<float>(v), bg / a.G, bg % a.G, block * kKeys);
  }

  void block(const Frame& f, const ThreadView& t, const Queries& q_block) const {
    const KernelTable& k_table = *a.kernels;
    ThreadScratch& s = *t.base;
    const Queries& qb = q_block;
    const float* keys =
        reinterpret_cast<const float*>(f.scratch) + (qb.b * a.G + qb.g) * group_floats();
    const float* values = keys + a.packed_rows();
    k_table.pack_b(t.q, f.ptr<float>(q) + a.at(qb.b, qb.first, qb.h, a.H), a.H * a.K, true,
                   qb.count, a.K);
    std::fill_n(s.max_L, qb.L, -std::numeric_limits<float>::infinity());
    std::fill_n(s.sum_L, qb.L, 0.0F);
    for (int64_t key = 0; key < qb.seen; key += kKeys) {
      const int64_t C = keys_needed(a, qb, key);
      k_table.gemm_packed(s.s, qb.L, keys + key * a.K, t.q, C, qb.L, a.K, false);
      k_table.attention_softmax(s.s, C, qb.L, diagonal_of(a, qb, key), a.scale, s.max_L, s.sum_L,
                                s.correction_L);
      if (key > 0) k_table.scale_lanes(t.acc_KL, a.K, qb.L, s.correction_L);
      a.over_keys(t.acc_KL, values, s.s, key, C, qb.L, key > 0);
    }
    finish(f, t, qb);
  }

  void finish(const Frame& f, const ThreadView& t, const Queries& qb) const {
    ThreadScratch& s = *t.base;
    float* lse_row = f.ptr<float>(lse) + (qb.b * a.H + qb.h) * a.T + qb.first;
    for (int64_t i = 0; i < qb.count; ++i) lse_row[i] = s.max_L[i] + std::log(s.sum_L[i]);
    for (int64_t i = 0; i < qb.L; ++i) s.correction_L[i] = 1.0F / s.sum_L[i];
    a.kernels->scale_lanes(t.acc_KL, a.K, qb.L, s.correction_L);
    a.kernels->transpose(f.ptr<float>(o) + a.at(qb.b, qb.first, qb.h, a.H), t.acc_KL, a.H * a.K,
                         qb.L, qb.count, a.K);
  }
};

struct Backward {
  Attention a;
  ValueId d_o, q, k, v, o, lse, dq, dk, dv;

  [[nodiscard]] int64_t group_floats() const { return 2 * a.packed_rows() + a.packed_columns(); }
  [[nodiscard]] int64_t shared_floats() const { return a.B * a.G * group_floats(); }

  /// Also clears dk and dv, which sum up over blocks of queries.
  void pack(const Frame& f, int64_t bg, int64_t block) const {
    float* shared = reinterpret_cast<float*>(f.scratch) + bg * group_floats();
    const int64_t b = bg / a.G;
    const int64_t g = bg % a.G;
    const int64_t key = block * kKeys;
    a.pack_keys(shared, f.ptr<float>(k), b, g, key);
    a.pack_keys(shared + a.packed_rows(), f.ptr<float>(v), b, g, key);
    a.pack_dims(shared + 2 * a.packed_rows(), f.ptr<float>(k), b, g, key);
    for (int64_t t = key; t < key + a.depth_of(key); ++t) {
      const auto bytes = static_cast<size_t>(a.K) * sizeof(float);
      std::memset(f.ptr<float>(dk) + a.at(b, t, g, a.G), 0, bytes);
      std::memset(f.ptr<float>(dv) + a.at(b, t, g, a.G), 0, bytes);
    }
  }

  void start(const Frame& f, const ThreadView& t, const Queries& qb) const {
    const KernelTable& k_table = *a.kernels;
    const int64_t stride = a.H * a.K;
    const int64_t at = a.at(qb.b, qb.first, qb.h, a.H);
    const float* q_rows = f.ptr<float>(q) + at;
    const float* d_o_rows = f.ptr<float>(d_o) + at;
    k_table.pack_b(t.q, q_rows, stride, true, qb.count, a.K);
    k_table.pack_b(t.d_o, d_o_rows, stride, true, qb.count, a.K);
    k_table.pack_b(t.q_rows, q_rows, stride, false, a.K, qb.count);
    k_table.pack_b(t.d_o_rows, d_o_rows, stride, false, a.K, qb.count);
    float* lse_L = t.base->max_L;
    float* delta_L = t.base->sum_L;
    std::fill_n(lse_L, qb.L, 0.0F);
    std::fill_n(delta_L, qb.L, 0.0F);
    std::copy_n(f.ptr<float>(lse) + (qb.b * a.H + qb.h) * a.T + qb.first, qb.count, lse_L);
    for (int64_t i = 0; i < qb.count; ++i) {
      delta_L[i] = k_table.dot(d_o_rows + i * stride, f.ptr<float>(o) + at + i * stride, a.K);
    }
  }

  /// One block of queries against keys [begin, end): its part of dq, or of dk and dv, or both.
  void block(const Frame& f, const ThreadView& t, const Queries& qb, int64_t begin, int64_t end,
             bool with_dq, bool with_dkv) const {
    const KernelTable& k_table = *a.kernels;
    ThreadScratch& s = *t.base;
    const float* keys =
        reinterpret_cast<const float*>(f.scratch) + (qb.b * a.G + qb.g) * group_floats();
    const float* values = keys + a.packed_rows();
    const float* dims = values + a.packed_rows();
    start(f, t, qb);
    for (int64_t key = begin; key < std::min(end, qb.seen); key += kKeys) {
      const int64_t C = keys_needed(a, qb, key);
      k_table.gemm_packed(s.s, qb.L, keys + key * a.K, t.q, C, qb.L, a.K, false);
      k_table.gemm_packed(s.dp, qb.L, values + key * a.K, t.d_o, C, qb.L, a.K, false);
      k_table.attention_grad(s.s, s.dp, C, qb.L, diagonal_of(a, qb, key), a.scale, s.max_L,
                             s.sum_L);
      if (with_dkv) {
        const int64_t at = a.at(qb.b, key, qb.g, a.G);
        k_table.pack_a(s.p_packed, s.s, qb.L, false, C, qb.count);
        k_table.gemm_packed(f.ptr<float>(dv) + at, a.G * a.K, s.p_packed, t.d_o_rows, C, a.K,
                            qb.count, true);
        k_table.pack_a(s.p_packed, s.dp, qb.L, false, C, qb.count);
        k_table.gemm_packed(f.ptr<float>(dk) + at, a.G * a.K, s.p_packed, t.q_rows, C, a.K,
                            qb.count, true);
      }
      if (with_dq) a.over_keys(t.acc_KL, dims, s.dp, key, C, qb.L, key > 0);
    }
    if (!with_dq) return;
    k_table.transpose(f.ptr<float>(dq) + a.at(qb.b, qb.first, qb.h, a.H), t.acc_KL, a.H * a.K, qb.L,
                      qb.count, a.K);
  }

  /// All of one (batch, group): heads in order, blocks of queries in order, keys in order.
  void group(const Frame& f, const ThreadView& t, int64_t b, int64_t g) const {
    for (int64_t h = g * a.heads_per_group(); h < (g + 1) * a.heads_per_group(); ++h) {
      for (int64_t i = 0; i < a.query_blocks(); ++i) {
        block(f, t, queries_of(a, b, h, i), 0, a.T, true, true);
      }
    }
  }

  /// dk and dv of one block of keys.
  void keys(const Frame& f, const ThreadView& t, int64_t b, int64_t g, int64_t key) const {
    for (int64_t h = g * a.heads_per_group(); h < (g + 1) * a.heads_per_group(); ++h) {
      for (int64_t i = a.causal ? key / a.block_queries() : 0; i < a.query_blocks(); ++i) {
        block(f, t, queries_of(a, b, h, i), key, key + kKeys, false, true);
      }
    }
  }
};

/// Packs the operands of all groups, in tasks of one block of keys.
template <class Pass>
void pack_all(const Frame& f, const Pass& pass) {
  const int64_t blocks = pass.a.key_blocks();
  f.pool->parallel_for(pass.a.B * pass.a.G * blocks,
                       [&](int64_t task, int32_t) { pass.pack(f, task / blocks, task % blocks); });
}

template <class Pass>
void need_scratch(Lowering& low, const Pass& pass) {
  low.need_scratch(pass.shared_floats() * static_cast<int64_t>(sizeof(float)) +
                   low.num_threads() * thread_bytes(pass.a));
}

}  // namespace

Status lower_flash_attention(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const Forward fwd{.a = attention_of(low, op, op.operands[0], op.operands[1]),
                    .q = op.operands[0],
                    .k = op.operands[1],
                    .v = op.operands[2],
                    .o = op.results[0],
                    .lse = op.results[1]};
  need_scratch(low, fwd);
  low.add([fwd](const Frame& f) -> Status {
    const Attention& a = fwd.a;
    pack_all(f, fwd);
    const int64_t blocks = a.query_blocks();
    f.pool->parallel_for(a.B * a.H * blocks, [&](int64_t task, int32_t thread) {
      const int64_t bh = task / blocks;
      // The last queries see the most keys: largest tasks first.
      fwd.block(f, thread_view(a, f, fwd.shared_floats(), thread),
                queries_of(a, bh / a.H, bh % a.H, blocks - 1 - task % blocks));
    });
    return {};
  });
  return {};
}

Status lower_flash_attention_grad(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const Backward bwd{.a = attention_of(low, op, op.operands[1], op.operands[2]),
                     .d_o = op.operands[0],
                     .q = op.operands[1],
                     .k = op.operands[2],
                     .v = op.operands[3],
                     .o = op.operands[4],
                     .lse = op.operands[5],
                     .dq = op.results[0],
                     .dk = op.results[1],
                     .dv = op.results[2]};
  need_scratch(low, bwd);
  const Attention a = bwd.a;
  if (a.B * a.G >= kMinGroupTasks || a.T <= kKeys / 2) {
    low.add([=](const Frame& f) -> Status {
      pack_all(f, bwd);
      f.pool->parallel_for(a.B * a.G, [&](int64_t task, int32_t thread) {
        bwd.group(f, thread_view(a, f, bwd.shared_floats(), thread), task / a.G, task % a.G);
      });
      return {};
    });
    return {};
  }
  low.add([=](const Frame& f) -> Status {
    pack_all(f, bwd);
    const int64_t key_tasks = a.B * a.G * a.key_blocks();
    const int64_t query_tasks = a.B * a.H * a.query_blocks();
    f.pool->parallel_for(key_tasks + query_tasks, [&](int64_t task, int32_t thread) {
      const ThreadView t = thread_view(a, f, bwd.shared_floats(), thread);
      if (task < key_tasks) {
        const int64_t bg = task / a.key_blocks();
        bwd.keys(f, t, bg / a.G, bg % a.G, task % a.key_blocks() * kKeys);
        return;
      }
      const int64_t bh = (task - key_tasks) / a.query_blocks();
      const int64_t i = (task - key_tasks) % a.query_blocks();
      bwd.block(f, t, queries_of(a, bh / a.H, bh % a.H, i), 0, a.T, true, false);
    });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
