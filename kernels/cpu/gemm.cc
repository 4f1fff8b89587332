#include "kernels/cpu/gemm.h"

#include "graph/base/units.h"

#include <cblas.h>

#include <algorithm>
#include <cstddef>

extern "C" char* openblas_get_corename(void);

namespace sgactor::kernels::cpu {
namespace {

// A panel of A (12 rows) of this depth stays in an L1 of 32 KiB beside what streams through it.
constexpr int64_t kMaxDepth = 384;
// A packed block that is read over and over stays in half of an L2 of 1 MiB.
constexpr int64_t kBlockFloats = 512 * kKiB / 4;
// The shared operand is packed this much at a time: it stays in a last-level cache.
constexpr int64_t kSharedFloats = 4 * kMiB / 4;
constexpr int64_t kSmallResult = 4 * kMiB / 4;
// Rows of A that gemm() packs at once.
constexpr int64_t kRowsAtOnce = 96;
// The shared operand streams from the last-level cache once a tile: fewer rows a tile would make
// that the limit.
constexpr int64_t kMinTile = 48;
constexpr double kMinParallelFlops = 1e6;

int64_t depth_of_block(int64_t k) { return k == 0 ? 1 : ceil_div(k, ceil_div(k, kMaxDepth)); }

bool trivial(const Gemm& g) { return g.m == 0 || g.n == 0 || g.k == 0; }

template <class T>
void fill_trivial(const Gemm& g, T* c) {
  if (g.accumulate) return;
  for (int64_t i = 0; i < g.m; ++i) std::fill_n(c + i * g.ldc, g.n, T{0});
}

/// First element of row `i`, depth `p` of op(A); B alike with columns.
const float* at_a(const Gemm& g, const float* a, int64_t i, int64_t p) {
  return a + (g.trans_a ? p * g.lda + i : i * g.lda + p);
}
const float* at_b(const Gemm& g, const float* b, int64_t j, int64_t p) {
  return b + (g.trans_b ? j * g.ldb + p : p * g.ldb + j);
}

int64_t columns_at_once(int64_t depth, int64_t unit) {
  return std::max(unit, kBlockFloats / depth / unit * unit);
}

/// Time of the slowest thread in rows or columns, if `threads` equal ones take tiles in turn.
int64_t makespan(int64_t extent, int64_t tile, int64_t threads) {
  const int64_t tiles = ceil_div(extent, tile);
  const int64_t most = ceil_div(tiles, threads) * tile;
  // With one round too many, its last tile is the short one.
  return tiles % threads == 1 ? most - (tiles * tile - extent) : most;
}

/// Waste of a tile on two and on four threads. Not on the actual number of threads: the cut depends
/// on the shape alone.
int64_t cost_of(int64_t extent, int64_t tile) {
  return makespan(extent, tile, 2) + 2 * makespan(extent, tile, 4);
}

/// The largest tile that balances within 2 % of the best.
int64_t choose_tile(int64_t extent, int64_t unit, int64_t most) {
  const int64_t least = std::min(most, round_up(kMinTile, unit));
  int64_t best_cost = INT64_MAX;
  for (int64_t tile = least; tile <= most; tile += unit) {
    best_cost = std::min(best_cost, cost_of(extent, tile));
  }
  int64_t best = least;
  for (int64_t tile = least; tile <= most; tile += unit) {
    if (cost_of(extent, tile) * 50 <= best_cost * 51) best = tile;
  }
  return best;
}

}  // namespace

int64_t gemm_scratch_bytes() {
  // Panels are padded: one more unit of either side, and no family's unit is above 64.
  constexpr int64_t kPadding = 64 * kMaxDepth;
  return (kBlockFloats + kRowsAtOnce * kMaxDepth + 2 * kPadding) *
         static_cast<int64_t>(sizeof(float));
}

int64_t gemm_block_depth(int64_t k) { return depth_of_block(k); }

void gemm(const KernelTable& kernels, const Gemm& g, const float* a, const float* b, float* c,
          float* scratch) {
  if (trivial(g)) return fill_trivial(g, c);
  const int64_t k_block = depth_of_block(g.k);
  const int64_t n_block = columns_at_once(k_block, kernels.gemm_columns);
  float* a_packed = scratch;
  float* b_packed = scratch + (kRowsAtOnce + 64) * kMaxDepth;
  for (int64_t j = 0; j < g.n; j += n_block) {
    const int64_t n = std::min(n_block, g.n - j);
    for (int64_t p = 0; p < g.k; p += k_block) {
      const int64_t k = std::min(k_block, g.k - p);
      kernels.pack_b(b_packed, at_b(g, b, j, p), g.ldb, g.trans_b, n, k);
      for (int64_t i = 0; i < g.m; i += kRowsAtOnce) {
        const int64_t m = std::min(kRowsAtOnce, g.m - i);
        kernels.pack_a(a_packed, at_a(g, a, i, p), g.lda, g.trans_a, m, k);
        kernels.gemm_packed(c + i * g.ldc + j, g.ldc, a_packed, b_packed, m, n, k,
                            g.accumulate || p > 0);
      }
    }
  }
}

void gemm(const Gemm& g, const double* a, const double* b, double* c) {
  if (trivial(g)) return fill_trivial(g, c);
  cblas_dgemm(CblasRowMajor, g.trans_a ? CblasTrans : CblasNoTrans,
              g.trans_b ? CblasTrans : CblasNoTrans, static_cast<int>(g.m), static_cast<int>(g.n),
              static_cast<int>(g.k), 1.0, a, static_cast<int>(g.lda), b, static_cast<int>(g.ldb),
              g.accumulate ? 1.0 : 0.0, c, static_cast<int>(g.ldc));
}

ParallelGemm::ParallelGemm(const KernelTable& kernels, const Gemm& g)
    : kernels_(&kernels), g_(g), by_rows_(g.m >= g.n) {
  const double flops =
      2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  worthwhile_ = flops >= kMinParallelFlops;
  k_block_ = depth_of_block(g.k);
  const int64_t unit = by_rows_ ? kernels.gemm_rows : kernels.gemm_columns;
  const int64_t shared_unit = by_rows_ ? kernels.gemm_columns : kernels.gemm_rows;
  const int64_t extent = by_rows_ ? g.m : g.n;
  shared_extent_ = round_up(by_rows_ ? g.n : g.m, shared_unit);
  // A small C may be passed over once a block of K, so that all tiles find the shared block in L2;
  // a large one only once, whatever that costs.
  const int64_t shared_floats = g.m * g.n <= kSmallResult ? kBlockFloats / 4 : kSharedFloats;
  const int64_t blocks =
      std::max<int64_t>(1, shared_floats / std::max<int64_t>(1, shared_extent_ * k_block_));
  k_super_ = blocks * k_block_;
  // Beside a tile of A, its rows of C and a block of B want to stay in L2 as well.
  const int64_t floats = by_rows_ ? kBlockFloats / 2 : kBlockFloats;
  tile_ = choose_tile(extent, unit, std::max(unit, floats / k_block_ / unit * unit));
}

int64_t ParallelGemm::num_tiles() const { return ceil_div(by_rows_ ? g_.m : g_.n, tile_); }

int64_t ParallelGemm::scratch_bytes(int32_t num_threads) const {
  const int64_t shared =
      round_up(shared_extent_ * std::min(k_super_, round_up(g_.k, k_block_)), 16);
  return (shared + num_threads * round_up(tile_ * k_block_, 16)) *
         static_cast<int64_t>(sizeof(float));
}

void ParallelGemm::pack_shared(ThreadPool::Session& pool, const float* source, int64_t k_begin,
                               int64_t k_end, float* shared) const {
  constexpr int64_t kPanelsAtOnce = 4;
  const int64_t extent = by_rows_ ? g_.n : g_.m;
  const int64_t step = kPanelsAtOnce * (by_rows_ ? kernels_->gemm_columns : kernels_->gemm_rows);
  const int64_t steps = ceil_div(extent, step);
  const int64_t blocks = ceil_div(k_end - k_begin, k_block_);
  pool.parallel_for(blocks * steps, [&](int64_t task, int32_t) {
    const int64_t p = k_begin + task / steps * k_block_;
    const int64_t k = std::min(k_block_, k_end - p);
    const int64_t first = task % steps * step;
    const int64_t count = std::min(step, extent - first);
    float* to = shared + (p - k_begin) * shared_extent_ + first * k;
    if (by_rows_) {
      kernels_->pack_b(to, at_b(g_, source, first, p), g_.ldb, g_.trans_b, count, k);
    } else {
      kernels_->pack_a(to, at_a(g_, source, first, p), g_.lda, g_.trans_a, count, k);
    }
  });
}

void ParallelGemm::run_tile(int64_t tile, const float* a, const float* b, float* c, int64_t k_begin,
                            int64_t k_end, const float* shared, float* own) const {
  const int64_t first = tile * tile_;
  const int64_t count = std::min(tile_, (by_rows_ ? g_.m : g_.n) - first);
  for (int64_t p = k_begin; p < k_end; p += k_block_) {
    const int64_t k = std::min(k_block_, k_end - p);
    const float* shared_block = shared + (p - k_begin) * shared_extent_;
    const bool accumulate = g_.accumulate || p > 0;
    if (!by_rows_) {
      kernels_->pack_b(own, at_b(g_, b, first, p), g_.ldb, g_.trans_b, count, k);
      kernels_->gemm_packed(c + first, g_.ldc, shared_block, own, g_.m, count, k, accumulate);
      continue;
    }
    kernels_->pack_a(own, at_a(g_, a, first, p), g_.lda, g_.trans_a, count, k);
    const int64_t n_block = columns_at_once(k, kernels_->gemm_columns);
    for (int64_t j = 0; j < g_.n; j += n_block) {
      kernels_->gemm_packed(c + first * g_.ldc + j, g_.ldc, own, shared_block + j * k, count,
                            std::min(n_block, g_.n - j), k, accumulate);
    }
  }
}

void ParallelGemm::run(ThreadPool::Session& pool, const float* a, const float* b, float* c,
                       std::byte* scratch) const {
  if (trivial(g_)) return fill_trivial(g_, c);
  auto* shared = reinterpret_cast<float*>(scratch);
  float* own = shared + round_up(shared_extent_ * std::min(k_super_, round_up(g_.k, k_block_)), 16);
  const int64_t own_stride = round_up(tile_ * k_block_, 16);
  for (int64_t p = 0; p < g_.k; p += k_super_) {
    const int64_t end = std::min(g_.k, p + k_super_);
    pack_shared(pool, by_rows_ ? b : a, p, end, shared);
    pool.parallel_for(num_tiles(), [&](int64_t tile, int32_t thread) {
      run_tile(tile, a, b, c, p, end, shared, own + thread * own_stride);
    });
  }
}

void init_blas() { openblas_set_num_threads(1); }

std::string blas_description() {
  const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE …"
  size_t end = config.find(' ');
  if (end != std::string::npos) end = config.find(' ', end + 1);
  return config.substr(0, end) + " " + openblas_get_corename();
}

}  // namespace sgactor::kernels::cpu
