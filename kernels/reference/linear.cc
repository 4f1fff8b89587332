// Letters: M rows of the result, N columns, K the summed dim; b the flattened batch dims.
#include "kernels/reference/kernels.h"

namespace sgactor::kernels::reference {

void add_product(const graph::Attrs& attrs, const Tensor& a, const Tensor& b, const Tensor& y,
                 double factor) {
  const bool trans_a = attrs.flag("trans_a");
  const bool trans_b = attrs.flag("trans_b");
  const int64_t num_m = y.shape().dim(-2);
  const int64_t num_n = y.shape().dim(-1);
  const int64_t num_k = a.shape().dim(trans_a ? -2 : -1);
  const int64_t num_batches = num_m * num_n == 0 ? 0 : y.size() / (num_m * num_n);
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const double* a_MK = a.f64() + (batch * num_m * num_k);
    const double* b_KN = b.f64() + (batch * num_k * num_n);
    double* y_MN = y.f64() + (batch * num_m * num_n);
    for (int64_t m = 0; m < num_m; ++m) {
      for (int64_t k = 0; k < num_k; ++k) {
        const double left = factor * (trans_a ? a_MK[(k * num_m) + m] : a_MK[(m * num_k) + k]);
        for (int64_t n = 0; n < num_n; ++n) {
          const double right = trans_b ? b_KN[(n * num_k) + k] : b_KN[(k * num_n) + n];
          y_MN[(m * num_n) + n] += left * right;
        }
      }
    }
  }
}

Status matmul(const OpCall& call) {
  const Tensor& y = call.out[0];
  const bool adds = call.in.size() > 2;
  for (int64_t i = 0; i < y.size(); ++i) y.f64()[i] = adds ? call.in[2].f64()[i] : 0.0;
  add_product(call.op.attrs, call.in[0], call.in[1], y);
  return {};
}

Status matmul_accumulate(const OpCall& call) {
  const Tensor& y = call.out[0];
  for (int64_t i = 0; i < y.size(); ++i) y.f64()[i] = call.in[0].f64()[i];
  add_product(call.op.attrs, call.in[1], call.in[2], y);
  return {};
}

}  // namespace sgactor::kernels::reference
