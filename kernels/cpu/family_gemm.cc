// Matrix multiplication on packed panels, in the way of Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication" (ACM TOMS, 2008): op(A) as panels of kRows rows, op(B) as
// panels of kColumns columns, a block of C in registers.
#include "kernels/cpu/family_kernels.h"
#include "kernels/cpu/family_math.h"

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {
namespace {

// Rows x vectors of C in registers: 24 of 32, 12 of 16, 8 of 16; the rest holds a row of B and a
// broadcast element of A.
#if defined(__AVX512F__)
constexpr int kRows = 12;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif
constexpr int kHalfRows = kRows / 2;
constexpr int kMostRows = kRows - kRows / 3;
constexpr int kVectors = 2;
constexpr int kColumns = kVectors * kLanes;

/// Width of the panel that starts with `rest` rows or columns still to come: narrow ones at the end
/// waste less on padding. With 12 rows, 8 are one of them: powers of two have such a rest.
SGA_INLINE int panel_rows(int64_t rest) {
  return rest <= kHalfRows ? kHalfRows : rest <= kMostRows ? kMostRows : kRows;
}
SGA_INLINE int panel_columns(int64_t rest) { return rest <= kLanes ? kLanes : kColumns; }

/// C[rows, columns] = or += panel of A x panel of B; panels are padded with zeros, C is not.
template <int kM, int kN>
void block(float* c, int64_t ldc, const float* a, const float* b, int64_t rows, int64_t columns,
           int64_t k, bool accumulate) {
  Vec acc[kM][kN];
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
    // Asked for now, C is there when the sums are done.
    __builtin_prefetch(c + i * ldc, 1);
    __builtin_prefetch(c + i * ldc + kN * kLanes - 1, 1);
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) acc[i][j] = Vec{};
  }
  for (int64_t p = 0; p < k; ++p) {
    Vec row[kN];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) row[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
      const Vec element = splat(a[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) acc[i][j] += element * row[j];
    }
    a += kM;
    b += kN * kLanes;
  }
  if (columns == kN * kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
      if (i >= rows) return;
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) {
        float* to = c + i * ldc + j * kLanes;
        store(to, accumulate ? load(to) + acc[i][j] : acc[i][j]);
      }
    }
    return;
  }
  alignas(kVectorBytes) float spill[kM][kN * kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) store(spill[i] + j * kLanes, acc[i][j]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float* to = c + i * ldc + j;
      *to = accumulate ? *to + spill[i][j] : spill[i][j];
    }
  }
}

void gemm_packed(float* c, int64_t ldc, const float* a, const float* b, int64_t m, int64_t n,
                 int64_t k, bool accumulate) {
  for (int64_t i = 0; i < m; i += kRows) {
    const int height = panel_rows(m - i);
    const int64_t rows = m - i < height ? m - i : height;
    const float* a_panel = a + i * k;
    for (int64_t j = 0; j < n; j += kColumns) {
      const int width = panel_columns(n - j);
      const int64_t columns = n - j < width ? n - j : width;
      const float* b_panel = b + j * k;
      float* to = c + i * ldc + j;
      const auto run = [&](auto full, auto narrow) {
        (width == kColumns ? full : narrow)(to, ldc, a_panel, b_panel, rows, columns, k,
                                            accumulate);
      };
      if (height == kRows) {
        run(block<kRows, kVectors>, block<kRows, 1>);
      } else if (height == kMostRows) {
        run(block<kMostRows, kVectors>, block<kMostRows, 1>);
      } else {
        run(block<kHalfRows, kVectors>, block<kHalfRows, 1>);
      }
    }
  }
}

/// Transposes kLanes x kLanes floats in registers: a butterfly, log2(kLanes) stages.
SGA_INLINE void transpose(Vec (&r)[kLanes]) {
#pragma GCC unroll 4
  for (int s = 1; s < kLanes; s *= 2) {
    IntVec low = {};
    IntVec high = {};
    for (int l = 0; l < kLanes; ++l) {
      low[l] = (l & s) == 0 ? l : kLanes + l - s;
      high[l] = (l & s) == 0 ? l + s : kLanes + l;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & s) != 0) continue;
      const Vec u = r[i];
      const Vec v = r[i | s];
      r[i] = __builtin_shuffle(u, v, low);
      r[i | s] = __builtin_shuffle(u, v, high);
    }
  }
}

/// to[p * width + i] = from[i * ld + p] for i < lines (zero up to `lanes`), p < k. What is needed
/// next lies `ahead` lines further: where lines are far apart, the hardware finds no stream to
/// follow.
void pack_transposed(float* to, int64_t width, int64_t lanes, const float* from, int64_t ld,
                     int64_t lines, int64_t k, int64_t ahead) {
  for (int64_t p = 0; p < k; p += kLanes) {
    const int64_t depth = k - p < kLanes ? k - p : kLanes;
    Vec r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i >= lines) {
        r[i] = Vec{};
      } else {
        __builtin_prefetch(from + (i + ahead) * ld + p);
        r[i] = depth == kLanes ? load(from + i * ld + p) : load_part(from + i * ld + p, depth);
      }
    }
    transpose(r);
    if (depth == kLanes && lanes == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(to + (p + i) * width, r[i]);
    } else if (depth == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store_part(to + (p + i) * width, r[i], lanes);
    } else {
      for (int i = 0; i < depth; ++i) {
        if (lanes == kLanes) {
          store(to + (p + i) * width, r[i]);
        } else {
          store_part(to + (p + i) * width, r[i], lanes);
        }
      }
    }
  }
}

/// One row of the source holds a column of every panel: panels side by side, k in the outer loop.
/// `width_of` is the width of the panel with so many still to come.
template <int kFull, class WidthOf>
void pack_rows(float* to, const float* from, int64_t ld, int64_t extent, int64_t k,
               WidthOf width_of) {
  constexpr int64_t kRowsAhead = 6;
  for (int64_t p = 0; p < k; ++p, from += ld) {
    for (int64_t i = 0; i < extent; i += 16) __builtin_prefetch(from + kRowsAhead * ld + i);
    for (int64_t i = 0; i < extent; i += kFull) {
      const int64_t rest = extent - i;
      const int64_t width = width_of(rest);
      float* at = to + i * k + p * width;
      if (rest >= kFull) {
#pragma GCC unroll 4
        for (int l = 0; l < kFull; l += kLanes) {
          if (kFull - l >= kLanes) {
            store(at + l, load(from + i + l));
          } else {
            store_part(at + l, load_part(from + i + l, kFull - l), kFull - l);
          }
        }
      } else {
        for (int64_t l = 0; l < width; ++l) at[l] = l < rest ? from[i + l] : 0.0F;
      }
    }
  }
}

void pack_a(float* to, const float* a, int64_t lda, bool trans, int64_t m, int64_t k) {
  if (trans) {
    pack_rows<kRows>(to, a, lda, m, k, panel_rows);
    return;
  }
  for (int64_t i = 0; i < m; i += kRows) {
    const int64_t height = panel_rows(m - i);
    const int64_t lines = m - i < height ? m - i : height;
    if (height <= kLanes) {
      pack_transposed(to + i * k, height, height, a + i * lda, lda, lines, k, height);
    } else {
      static_assert(kRows <= 2 * kLanes);
      pack_transposed(to + i * k, height, kLanes, a + i * lda, lda, lines, k, height);
      pack_transposed(to + i * k + kLanes, height, height - kLanes, a + (i + kLanes) * lda, lda,
                      lines - kLanes, k, height);
    }
  }
}

void pack_b(float* to, const float* b, int64_t ldb, bool trans, int64_t n, int64_t k) {
  if (!trans) {
    pack_rows<kColumns>(to, b, ldb, n, k, panel_columns);
    return;
  }
  for (int64_t j = 0; j < n; j += kColumns) {
    const int64_t width = panel_columns(n - j);
    for (int64_t l = 0; l < width; l += kLanes) {
      const int64_t rest = n - j - l;
      const int64_t lines = rest < 0 ? 0 : rest < kLanes ? rest : kLanes;
      pack_transposed(to + j * k + l, width, kLanes, b + (j + l) * ldb, ldb, lines, k, width);
    }
  }
}

void transpose_matrix(float* y, const float* x, int64_t y_stride, int64_t x_stride, int64_t rows,
                      int64_t columns) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    const int64_t lines = columns - j < kLanes ? columns - j : kLanes;
    pack_transposed(y + j, y_stride, lines, x + j * x_stride, x_stride, lines, rows, 0);
  }
}

}  // namespace

void add_gemm_kernels(KernelTable& t) {
  t.transpose = transpose_matrix;
  t.gemm_rows = kRows;
  t.gemm_columns = kColumns;
  t.pack_a = pack_a;
  t.pack_b = pack_b;
  t.gemm_packed = gemm_packed;
}

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
