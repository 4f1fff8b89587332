#pragma once
#include <cstdint>

namespace sgactor::kernels::cpu {

// Kernels of one family. The same sources are compiled once a family with other -m flags, so this
// header must not pull in inline functions that a linker could share between families. All arrays
// are f32, dense unless a stride is given; results may be the same array as an operand of the same
// shape, but must not overlap it otherwise. Order of sums depends on the length only.
// Letters: n elements, R rows, D columns, H heads, K head dim, V vocabulary.

enum Binary : uint8_t { kAdd, kSub, kMul, kDiv, kMin, kMax, kNumBinary };
enum Unary : uint8_t {
  kNeg,
  kExp,
  kSqrt,
  kRsqrt,
  kSquare,
  kSigmoid,
  kSilu,
  kScale,
  kAddScalar,
  kFill,
  kNumUnary
};

struct AdamwScalars {
  float clip, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float decay;      ///< 1 - lr * weight_decay
  float step_size;  ///< lr / bias1
  float inv_sqrt_bias2;
  float eps;
};

struct KernelTable {
  const char* family;

  void (*binary[kNumBinary])(float* y, const float* a, const float* b, int64_t n);
  void (*binary_scalar[kNumBinary])(float* y, const float* a, float b, int64_t n);
  /// `param` is used by kScale, kAddScalar and kFill (which reads no x).
  void (*unary[kNumUnary])(float* y, const float* x, int64_t n, float param);
  void (*silu_grad)(float* dx, const float* x, const float* dy, int64_t n);
  void (*swiglu)(float* y, const float* gate, const float* up, int64_t n);
  void (*swiglu_grad)(float* dgate, float* dup, const float* gate, const float* up, const float* dy,
                      int64_t n);

  float (*sum)(const float* x, int64_t n);
  float (*max)(const float* x, int64_t n);  ///< -inf for n = 0
  double (*sum_squares)(const float* x, int64_t n);

  void (*softmax)(float* y_RD, const float* x_RD, int64_t R, int64_t D);
  void (*softmax_grad)(float* dx_RD, const float* y_RD, const float* dy_RD, int64_t R, int64_t D);
  void (*rms_norm)(float* y_RD, float* rstd_R, const float* x_RD, const float* w_D, int64_t R,
                   int64_t D, float eps);
  void (*add_rms_norm)(float* s_RD, float* y_RD, float* rstd_R, const float* x_RD,
                       const float* r_RD, const float* w_D, int64_t R, int64_t D, float eps);
  /// dx = gradient through the norm + ds (if not null); dw_D = sum over the R rows, from zero.
  void (*rms_norm_grad)(float* dx_RD, float* dw_D, const float* dy_RD, const float* ds_RD,
                        const float* x_RD, const float* w_D, const float* rstd_R, int64_t R,
                        int64_t D);
  /// One token: x_HK, cos, sin of K/2. `sign` 1 or -1 (inverse).
  void (*rotate)(float* y_HK, const float* x_HK, const float* cos, const float* sin, int64_t H,
                 int64_t K, float sign);

  float (*log_sum_exp)(const float* x, int64_t n);
  /// y = exp(x - lse) * scale
  void (*exp_shifted)(float* y, const float* x, int64_t n, float lse, float scale);

  void (*adamw)(float* p_out, float* m_out, float* v_out, const float* p, const float* m,
                const float* v, const float* g, int64_t n, const AdamwScalars& s);

  /// Attention on a block of scores with C keys in rows and L queries in lanes (a multiple of the
  /// vector width). Key c is seen by the lanes >= c + diagonal; -C for "by all".
  /// Softmax of scale * s merged into each lane's running (max, sum): s becomes
  /// exp(scale * s - max'), or 0 where not seen; correction = exp(max - max') is what the lane's
  /// earlier results are worth now.
  void (*attention_softmax)(float* s_CL, int64_t C, int64_t L, int64_t diagonal, float scale,
                            float* max_L, float* sum_L, float* correction_L);
  /// s becomes p = exp(scale * s - lse), or 0; dp becomes p * (dp - delta) * scale.
  void (*attention_grad)(float* s_CL, float* dp_CL, int64_t C, int64_t L, int64_t diagonal,
                         float scale, const float* lse_L, const float* delta_L);
  /// Multiplies each lane of R rows by its factor.
  void (*scale_lanes)(float* x_RL, int64_t R, int64_t L, const float* factor_L);
  float (*dot)(const float* a, const float* b, int64_t n);

  /// Matmul on packed operands. Panels of gemm_rows rows of op(A) or gemm_columns columns of op(B),
  /// each panel k deep, a panel starts at (first row or column) * k floats; the last one may be
  /// narrower, its padding is zero. packed_floats() bounds the space.
  int32_t gemm_rows, gemm_columns;
  void (*pack_a)(float* to, const float* a, int64_t lda, bool trans, int64_t m, int64_t k);
  void (*pack_b)(float* to, const float* b, int64_t ldb, bool trans, int64_t n, int64_t k);
  /// C[m, n] = or += op(A) op(B). An element's bits depend on k alone, not on m, n or the cut.
  void (*gemm_packed)(float* c, int64_t ldc, const float* a, const float* b, int64_t m, int64_t n,
                      int64_t k, bool accumulate);

  /// y[i * y_stride + j] = x[j * x_stride + i] for i < rows, j < columns.
  void (*transpose)(float* y, const float* x, int64_t y_stride, int64_t x_stride, int64_t rows,
                    int64_t columns);

  void (*bf16_to_f32)(float* y, const uint16_t* x, int64_t n);
  void (*f32_to_bf16)(uint16_t* y, const float* x, int64_t n);
};

/// Floats that `extent` rows or columns take when packed in panels of `unit`.
constexpr int64_t packed_floats(int64_t extent, int64_t unit, int64_t k) {
  return (extent + unit - 1) / unit * unit * k;
}

namespace baseline {
const KernelTable& kernel_table();
}
namespace avx2 {
const KernelTable& kernel_table();
}
namespace avx512 {
const KernelTable& kernel_table();
}

/// The best family that this CPU (and its operating system) can run.
const KernelTable& select_kernel_table();

}  // namespace sgactor::kernels::cpu
