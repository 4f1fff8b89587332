#pragma once
#include <cstdint>
#include <string>

namespace sgactor::kernels::cpu {

/// One matmul on the calling thread: C = op(A) op(B) + beta * C, row major, leading dims in
/// elements. beta is 0 (C need not be initialised) or 1.
struct Gemm {
  bool trans_a = false;
  bool trans_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  bool accumulate = false;
};
void gemm(const Gemm& g, const float* a, const float* b, float* c);
void gemm(const Gemm& g, const double* a, const double* b, double* c);

/// How a large matmul is cut into tiles that threads take one by one: whole rows and columns of
/// `rows` x `columns` (the last ones smaller). K is never cut. A function of the shape only, so
/// that every number of threads computes the same bits.
struct MatmulCut {
  int64_t rows = 0;
  int64_t columns = 0;
};
MatmulCut cut_matmul(int64_t m, int64_t n, int64_t k);

/// Must run once before the first gemm: one thread a call. Idempotent.
void init_blas();
/// "OpenBLAS 0.3.21 SkylakeX"
std::string blas_description();

}  // namespace sgactor::kernels::cpu
