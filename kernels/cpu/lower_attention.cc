// Attention without a T x T store: blocks of query rows against blocks of keys, with a running
// maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao
// et al., "FlashAttention", 2022). Letters: B batch, T time, H query heads, G key-value heads, K
// head dim; R rows and C columns of one block.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lowering.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::ValueId;

// A multiple of the rows of every family's matmul kernel.
constexpr int64_t kBlockRows = 96;
constexpr int64_t kBlockColumns = 256;
// Fewer (batch, group) pairs than this leave threads idle: then dk, dv and dq are computed by
// separate, finer tasks, at the price of computing the scores twice.
constexpr int64_t kMinGroupTasks = 8;

struct Attention {
  int64_t B = 0, T = 0, H = 0, G = 0, K = 0;
  float scale = 1;
  bool causal = true;

  [[nodiscard]] int64_t row_blocks() const { return ceil_div(T, kBlockRows); }
  [[nodiscard]] int64_t column_blocks() const { return ceil_div(T, kBlockColumns); }
  [[nodiscard]] int64_t heads_per_group() const { return H / G; }
  /// Offset of (b, t, head) in a [B, T, heads, K] tensor.
  [[nodiscard]] int64_t at(int64_t b, int64_t t, int64_t head, int64_t heads) const {
    return ((b * T + t) * heads + head) * K;
  }
  /// Columns that any of the rows [row, row + R) sees.
  [[nodiscard]] int64_t columns_seen(int64_t row, int64_t R) const { return causal ? row + R : T; }
  [[nodiscard]] int64_t rows_of(int64_t block) const {
    return std::min(kBlockRows, T - block * kBlockRows);
  }
};

/// One thread's scratch.
struct BlockScratch {
  float s_RC[kBlockRows * kBlockColumns];
  float dp_RC[kBlockRows * kBlockColumns];
  float max_R[kBlockRows];
  float sum_R[kBlockRows];
  float other_R[kBlockRows];  ///< correction forward, delta backward
  int32_t visible_R[kBlockRows];
  float* gemm = nullptr;  ///< scratch of gemm(), behind this struct
};
constexpr int64_t kStructBytes = (sizeof(BlockScratch) + 63) / 64 * 64;

int64_t thread_scratch_bytes() { return kStructBytes + gemm_scratch_bytes(); }

BlockScratch& scratch_of(const Frame& f, int32_t thread) {
  std::byte* base = f.scratch + thread * thread_scratch_bytes();
  auto& s = *reinterpret_cast<BlockScratch*>(base);
  s.gemm = reinterpret_cast<float*>(base + kStructBytes);
  return s;
}

Attention attention_of(const Lowering& low, const Op& op, ValueId q, ValueId k) {
  const Shape& qs = low.type(q).shape;
  return {.B = qs.dim(0),
          .T = qs.dim(1),
          .H = qs.dim(2),
          .G = low.type(k).shape.dim(2),
          .K = qs.dim(3),
          .scale = static_cast<float>(op.attrs.f64("scale")),
          .causal = op.attrs.flag("causal")};
}

void set_visible(const Attention& a, int64_t row, int64_t R, int64_t column, int64_t C,
                 int32_t* visible) {
  for (int64_t r = 0; r < R; ++r) {
    const int64_t seen = a.causal ? row + r + 1 - column : C;
    visible[r] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, C));
  }
}

struct Forward {
  Attention a;
  ValueId q, k, v, o, lse;
  const KernelTable* kernels;

  void block(const Frame& f, BlockScratch& s, int64_t b, int64_t h, int64_t row_block) const {
    const int64_t row = row_block * kBlockRows;
    const int64_t R = a.rows_of(row_block);
    const int64_t g = h / a.heads_per_group();
    const float* q_RK = f.ptr<float>(q) + a.at(b, row, h, a.H);
    float* o_RK = f.ptr<float>(o) + a.at(b, row, h, a.H);
    const int64_t q_stride = a.H * a.K;
    const int64_t k_stride = a.G * a.K;
    std::fill_n(s.max_R, R, -std::numeric_limits<float>::infinity());
    std::fill_n(s.sum_R, R, 0.0F);
    const int64_t seen = a.columns_seen(row, R);
    for (int64_t column = 0; column < seen; column += kBlockColumns) {
      const int64_t C = std::min(kBlockColumns, seen - column);
      gemm(*kernels,
           {.trans_b = true,
            .m = R,
            .n = C,
            .k = a.K,
            .lda = q_stride,
            .ldb = k_stride,
            .ldc = kBlockColumns},
           q_RK, f.ptr<float>(k) + a.at(b, column, g, a.G), s.s_RC, s.gemm);
      set_visible(a, row, R, column, C, s.visible_R);
      kernels->attention_softmax(s.s_RC, kBlockColumns, R, C, s.visible_R, a.scale, s.max_R,
                                 s.sum_R, s.other_R);
      for (int64_t r = 0; r < R && column > 0; ++r) {
        float* o_row = o_RK + r * q_stride;
        kernels->unary[kScale](o_row, o_row, a.K, s.other_R[r]);
      }
      gemm(*kernels,
           {.m = R,
            .n = a.K,
            .k = C,
            .lda = kBlockColumns,
            .ldb = k_stride,
            .ldc = q_stride,
            .accumulate = column > 0},
           s.s_RC, f.ptr<float>(v) + a.at(b, column, g, a.G), o_RK, s.gemm);
    }
    float* lse_R = f.ptr<float>(lse) + (b * a.H + h) * a.T + row;
    for (int64_t r = 0; r < R; ++r) {
      float* o_row = o_RK + r * q_stride;
      kernels->unary[kScale](o_row, o_row, a.K, 1.0F / s.sum_R[r]);
      lse_R[r] = s.max_R[r] + std::log(s.sum_R[r]);
    }
  }
};

struct Backward {
  Attention a;
  ValueId d_o, q, k, v, o, lse, dq, dk, dv;
  const KernelTable* kernels;

  /// delta[r] = sum over K of do * o.
  void deltas(const Frame& f, BlockScratch& s, int64_t b, int64_t h, int64_t row, int64_t R) const {
    for (int64_t r = 0; r < R; ++r) {
      const int64_t at = a.at(b, row + r, h, a.H);
      s.other_R[r] = kernels->dot(f.ptr<float>(d_o) + at, f.ptr<float>(o) + at, a.K);
    }
  }

  /// Scores of one block again, then its part of dq and of dk, dv. s.other_R holds the deltas.
  void tile(const Frame& f, BlockScratch& s, int64_t b, int64_t h, int64_t row, int64_t R,
            int64_t column, int64_t C, bool with_dq, bool with_dkv) const {
    const int64_t g = h / a.heads_per_group();
    const int64_t q_stride = a.H * a.K;
    const int64_t k_stride = a.G * a.K;
    const int64_t q_at = a.at(b, row, h, a.H);
    const int64_t k_at = a.at(b, column, g, a.G);
    const Gemm scores{.trans_b = true,
                      .m = R,
                      .n = C,
                      .k = a.K,
                      .lda = q_stride,
                      .ldb = k_stride,
                      .ldc = kBlockColumns};
    gemm(*kernels, scores, f.ptr<float>(q) + q_at, f.ptr<float>(k) + k_at, s.s_RC, s.gemm);
    gemm(*kernels, scores, f.ptr<float>(d_o) + q_at, f.ptr<float>(v) + k_at, s.dp_RC, s.gemm);
    set_visible(a, row, R, column, C, s.visible_R);
    kernels->attention_grad(s.s_RC, s.dp_RC, kBlockColumns, R, C, s.visible_R, a.scale,
                            f.ptr<float>(lse) + (b * a.H + h) * a.T + row, s.other_R);
    if (with_dkv) {
      const Gemm to_keys{.trans_a = true,
                         .m = C,
                         .n = a.K,
                         .k = R,
                         .lda = kBlockColumns,
                         .ldb = q_stride,
                         .ldc = k_stride,
                         .accumulate = true};
      gemm(*kernels, to_keys, s.s_RC, f.ptr<float>(d_o) + q_at, f.ptr<float>(dv) + k_at, s.gemm);
      gemm(*kernels, to_keys, s.dp_RC, f.ptr<float>(q) + q_at, f.ptr<float>(dk) + k_at, s.gemm);
    }
    if (with_dq) {
      gemm(*kernels,
           {.m = R,
            .n = a.K,
            .k = C,
            .lda = kBlockColumns,
            .ldb = k_stride,
            .ldc = q_stride,
            .accumulate = column > 0},
           s.dp_RC, f.ptr<float>(k) + k_at, f.ptr<float>(dq) + q_at, s.gemm);
    }
  }

  void zero_keys(const Frame& f, int64_t b, int64_t g, int64_t column, int64_t C) const {
    for (int64_t t = column; t < column + C; ++t) {
      const auto bytes = static_cast<size_t>(a.K) * sizeof(float);
      std::memset(f.ptr<float>(dk) + a.at(b, t, g, a.G), 0, bytes);
      std::memset(f.ptr<float>(dv) + a.at(b, t, g, a.G), 0, bytes);
    }
  }

  /// All of one (batch, group): heads in order, row blocks in order, columns in order.
  void group(const Frame& f, BlockScratch& s, int64_t b, int64_t g) const {
    zero_keys(f, b, g, 0, a.T);
    for (int64_t h = g * a.heads_per_group(); h < (g + 1) * a.heads_per_group(); ++h) {
      for (int64_t i = 0; i < a.row_blocks(); ++i) rows(f, s, b, h, i, true);
    }
  }

  /// One block of rows against all columns it sees: dq whole, and its part of dk, dv if asked.
  void rows(const Frame& f, BlockScratch& s, int64_t b, int64_t h, int64_t i, bool with_dkv) const {
    const int64_t row = i * kBlockRows;
    const int64_t R = a.rows_of(i);
    deltas(f, s, b, h, row, R);
    const int64_t seen = a.columns_seen(row, R);
    for (int64_t column = 0; column < seen; column += kBlockColumns) {
      tile(f, s, b, h, row, R, column, std::min(kBlockColumns, seen - column), true, with_dkv);
    }
  }

  /// One block of columns against all rows that see it: dk and dv whole.
  void columns(const Frame& f, BlockScratch& s, int64_t b, int64_t g, int64_t j) const {
    const int64_t column = j * kBlockColumns;
    zero_keys(f, b, g, column, std::min(kBlockColumns, a.T - column));
    for (int64_t h = g * a.heads_per_group(); h < (g + 1) * a.heads_per_group(); ++h) {
      for (int64_t i = a.causal ? column / kBlockRows : 0; i < a.row_blocks(); ++i) {
        const int64_t row = i * kBlockRows;
        const int64_t R = a.rows_of(i);
        const int64_t C = std::min(kBlockColumns, a.columns_seen(row, R) - column);
        deltas(f, s, b, h, row, R);
        tile(f, s, b, h, row, R, column, C, false, true);
      }
    }
  }
};

}  // namespace

Status lower_flash_attention(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const Forward fwd{.a = attention_of(low, op, op.operands[0], op.operands[1]),
                    .q = op.operands[0],
                    .k = op.operands[1],
                    .v = op.operands[2],
                    .o = op.results[0],
                    .lse = op.results[1],
                    .kernels = &low.kernels()};
  low.need_scratch(low.num_threads() * thread_scratch_bytes());
  low.add([fwd](const Frame& f) -> Status {
    const int64_t blocks = fwd.a.row_blocks();
    f.pool->parallel_for(fwd.a.B * fwd.a.H * blocks, [&](int64_t task, int32_t thread) {
      const int64_t bh = task / blocks;
      // The last rows see the most columns: largest tasks first.
      fwd.block(f, scratch_of(f, thread), bh / fwd.a.H, bh % fwd.a.H, blocks - 1 - task % blocks);
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
                     .dv = op.results[2],
                     .kernels = &low.kernels()};
  low.need_scratch(low.num_threads() * thread_scratch_bytes());
  const Attention a = bwd.a;
  if (a.B * a.G >= kMinGroupTasks || a.T <= kBlockRows) {
    low.add([=](const Frame& f) -> Status {
      f.pool->parallel_for(a.B * a.G, [&](int64_t task, int32_t thread) {
        bwd.group(f, scratch_of(f, thread), task / a.G, task % a.G);
      });
      return {};
    });
    return {};
  }
  low.add([=](const Frame& f) -> Status {
    const int64_t column_tasks = a.B * a.G * a.column_blocks();
    const int64_t row_tasks = a.B * a.H * a.row_blocks();
    f.pool->parallel_for(column_tasks + row_tasks, [&](int64_t task, int32_t thread) {
      BlockScratch& s = scratch_of(f, thread);
      if (task < column_tasks) {
        const int64_t bg = task / a.column_blocks();
        bwd.columns(f, s, bg / a.G, bg % a.G, task % a.column_blocks());
        return;
      }
      const int64_t bh = (task - column_tasks) / a.row_blocks();
      const int64_t i = (task - column_tasks) % a.row_blocks();
      bwd.rows(f, s, bh / a.H, bh % a.H, i, false);
    });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
