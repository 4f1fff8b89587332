// Row-wise ops. Letters: N rows (all leading dims), D the last dim.
#include "kernels/reference/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sgactor::kernels::reference {
namespace {

int64_t row_length(const Tensor& x) { return x.shape().dim(-1); }
int64_t num_rows(const Tensor& x) {
  int64_t n = 1;
  for (int d = 0; d + 1 < x.shape().rank(); ++d) n *= x.shape().dim(d);
  return n;
}

void normalize_rows(const double* x_ND, const double* w_D, int64_t n_rows, int64_t n_dims,
                    double eps, double* y_ND, double* rstd_N) {
  for (int64_t n = 0; n < n_rows; ++n) {
    const double* x_D = x_ND + (n * n_dims);
    double sum = 0;
    for (int64_t d = 0; d < n_dims; ++d) sum += x_D[d] * x_D[d];
    rstd_N[n] = 1.0 / std::sqrt((sum / static_cast<double>(n_dims)) + eps);
    for (int64_t d = 0; d < n_dims; ++d) y_ND[(n * n_dims) + d] = x_D[d] * rstd_N[n] * w_D[d];
  }
}

/// With g = dy * w: dx = rstd * (g - x * rstd^2 * mean(g * x)), dw = sum over rows of dy * x *
/// rstd.
void normalize_rows_grad(const double* dy_ND, const double* x_ND, const double* w_D,
                         const double* rstd_N, int64_t n_rows, int64_t n_dims, double* dx_ND,
                         double* dw_D) {
  std::fill_n(dw_D, n_dims, 0.0);
  for (int64_t n = 0; n < n_rows; ++n) {
    const double* dy_D = dy_ND + (n * n_dims);
    const double* x_D = x_ND + (n * n_dims);
    const double r = rstd_N[n];
    double dot = 0;
    for (int64_t d = 0; d < n_dims; ++d) dot += dy_D[d] * w_D[d] * x_D[d];
    const double mean = dot / static_cast<double>(n_dims);
    for (int64_t d = 0; d < n_dims; ++d) {
      dx_ND[(n * n_dims) + d] = r * ((dy_D[d] * w_D[d]) - (x_D[d] * r * r * mean));
      dw_D[d] += dy_D[d] * x_D[d] * r;
    }
  }
}

}  // namespace

Status softmax(const OpCall& call) {
  const int64_t n_dims = row_length(call.in[0]);
  for (int64_t n = 0; n < num_rows(call.in[0]); ++n) {
    const double* x_D = call.in[0].f64() + (n * n_dims);
    double* y_D = call.out[0].f64() + (n * n_dims);
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t d = 0; d < n_dims; ++d) largest = std::max(largest, x_D[d]);
    double sum = 0;
    for (int64_t d = 0; d < n_dims; ++d) {
      y_D[d] = std::exp(x_D[d] - largest);
      sum += y_D[d];
    }
    for (int64_t d = 0; d < n_dims; ++d) y_D[d] /= sum;
  }
  return {};
}

Status softmax_grad(const OpCall& call) {
  const int64_t n_dims = row_length(call.in[0]);
  for (int64_t n = 0; n < num_rows(call.in[0]); ++n) {
    const double* y_D = call.in[0].f64() + (n * n_dims);
    const double* dy_D = call.in[1].f64() + (n * n_dims);
    double dot = 0;
    for (int64_t d = 0; d < n_dims; ++d) dot += y_D[d] * dy_D[d];
    for (int64_t d = 0; d < n_dims; ++d)
      call.out[0].f64()[(n * n_dims) + d] = y_D[d] * (dy_D[d] - dot);
  }
  return {};
}

Status rms_norm(const OpCall& call) {
  normalize_rows(call.in[0].f64(), call.in[1].f64(), num_rows(call.in[0]), row_length(call.in[0]),
                 call.op.attrs.f64("eps"), call.out[0].f64(), call.out[1].f64());
  return {};
}

Status rms_norm_grad(const OpCall& call) {
  normalize_rows_grad(call.in[0].f64(), call.in[1].f64(), call.in[2].f64(), call.in[3].f64(),
                      num_rows(call.in[0]), row_length(call.in[0]), call.out[0].f64(),
                      call.out[1].f64());
  return {};
}

Status add_rms_norm(const OpCall& call) {
  double* s_ND = call.out[0].f64();
  for (int64_t i = 0; i < call.out[0].size(); ++i)
    s_ND[i] = call.in[0].f64()[i] + call.in[1].f64()[i];
  normalize_rows(s_ND, call.in[2].f64(), num_rows(call.in[0]), row_length(call.in[0]),
                 call.op.attrs.f64("eps"), call.out[1].f64(), call.out[2].f64());
  return {};
}

Status add_rms_norm_grad(const OpCall& call) {
  const Tensor& ds = call.in[1];
  normalize_rows_grad(call.in[0].f64(), call.in[2].f64(), call.in[3].f64(), call.in[4].f64(),
                      num_rows(ds), row_length(ds), call.out[0].f64(), call.out[1].f64());
  for (int64_t i = 0; i < ds.size(); ++i) call.out[0].f64()[i] += ds.f64()[i];
  return {};
}

}  // namespace sgactor::kernels::reference
