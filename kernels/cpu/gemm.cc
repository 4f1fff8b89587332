#include "kernels/cpu/gemm.h"

#include "graph/base/units.h"

#include <cblas.h>

#include <algorithm>
#include <cstring>

extern "C" char* openblas_get_corename(void);

namespace sgactor::kernels::cpu {
namespace {

// Measured with tests/bench/kernels: below this a tile costs more in packing than it saves.
constexpr double kMinTileFlops = 12e6;
constexpr int64_t kMaxTiles = 16;
constexpr int64_t kRowUnit = 32;
constexpr int64_t kColumnUnit = 64;

CBLAS_TRANSPOSE transposed(bool t) { return t ? CblasTrans : CblasNoTrans; }

template <class T>
bool trivial(const Gemm& g, T* c) {
  if (g.m == 0 || g.n == 0) return true;
  if (g.k != 0) return false;
  for (int64_t i = 0; i < g.m && !g.accumulate; ++i) std::fill_n(c + i * g.ldc, g.n, T{0});
  return true;
}

}  // namespace

void gemm(const Gemm& g, const float* a, const float* b, float* c) {
  if (trivial(g, c)) return;
  cblas_sgemm(CblasRowMajor, transposed(g.trans_a), transposed(g.trans_b), static_cast<int>(g.m),
              static_cast<int>(g.n), static_cast<int>(g.k), 1.0F, a, static_cast<int>(g.lda), b,
              static_cast<int>(g.ldb), g.accumulate ? 1.0F : 0.0F, c, static_cast<int>(g.ldc));
}

void gemm(const Gemm& g, const double* a, const double* b, double* c) {
  if (trivial(g, c)) return;
  cblas_dgemm(CblasRowMajor, transposed(g.trans_a), transposed(g.trans_b), static_cast<int>(g.m),
              static_cast<int>(g.n), static_cast<int>(g.k), 1.0, a, static_cast<int>(g.lda), b,
              static_cast<int>(g.ldb), g.accumulate ? 1.0 : 0.0, c, static_cast<int>(g.ldc));
}

MatmulCut cut_matmul(int64_t m, int64_t n, int64_t k) {
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  int64_t tiles = std::clamp<int64_t>(static_cast<int64_t>(flops / kMinTileFlops), 1, kMaxTiles);
  // An even number of equal tiles keeps two threads busy to the end.
  if (tiles > 1) tiles = tiles / 2 * 2;
  MatmulCut cut{.rows = m, .columns = n};
  // Cutting the longer side keeps tiles square, hence the packing per flop small.
  while (tiles > 1) {
    if (cut.columns >= cut.rows && cut.columns > kColumnUnit) {
      cut.columns = round_up(ceil_div(cut.columns, 2), kColumnUnit);
    } else if (cut.rows > kRowUnit) {
      cut.rows = round_up(ceil_div(cut.rows, 2), kRowUnit);
    } else {
      break;
    }
    tiles /= 2;
  }
  return cut;
}

void init_blas() { openblas_set_num_threads(1); }

std::string blas_description() {
  const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE …"
  size_t end = config.find(' ');
  if (end != std::string::npos) end = config.find(' ', end + 1);
  return config.substr(0, end) + " " + openblas_get_corename();
}

}  // namespace sgactor::kernels::cpu
