#include "kernels/reference/kernels.h"

#include <cmath>

namespace sgactor::kernels::reference {
namespace {
double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }
}  // namespace

Status accumulate(const OpCall& call) {
  for (int64_t i = 0; i < call.out[0].size(); ++i)
    call.out[0].f64()[i] = call.in[0].f64()[i] + call.in[1].f64()[i];
  return {};
}

Status swiglu(const OpCall& call) {
  for (int64_t i = 0; i < call.out[0].size(); ++i) {
    const double gate = call.in[0].f64()[i];
    call.out[0].f64()[i] = gate * sigmoid_of(gate) * call.in[1].f64()[i];
  }
  return {};
}

Status swiglu_grad(const OpCall& call) {
  for (int64_t i = 0; i < call.out[0].size(); ++i) {
    const double gate = call.in[0].f64()[i];
    const double up = call.in[1].f64()[i];
    const double dy = call.in[2].f64()[i];
    const double s = sigmoid_of(gate);
    call.out[0].f64()[i] = dy * up * s * (1.0 + (gate * (1.0 - s)));
    call.out[1].f64()[i] = dy * gate * s;
  }
  return {};
}

/// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, with the
/// bias corrections placed as PyTorch places them.
Status adamw(const OpCall& call) {
  const graph::Attrs& a = call.op.attrs;
  const double beta1 = a.f64("beta1");
  const double beta2 = a.f64("beta2");
  const double eps = a.f64("eps");
  const double decay = a.f64("weight_decay");
  const double lr = call.in[4].f64()[0];
  const double clip = call.in[5].f64()[0];
  const double bias1 = call.in[6].f64()[0];
  const double bias2 = call.in[7].f64()[0];
  for (int64_t i = 0; i < call.out[0].size(); ++i) {
    const double g = call.in[3].f64()[i] * clip;
    const double m = (beta1 * call.in[1].f64()[i]) + ((1.0 - beta1) * g);
    const double v = (beta2 * call.in[2].f64()[i]) + ((1.0 - beta2) * g * g);
    const double p = call.in[0].f64()[i];
    call.out[0].f64()[i] =
        (p * (1.0 - (lr * decay))) - (lr / bias1 * m / ((std::sqrt(v) / std::sqrt(bias2)) + eps));
    call.out[1].f64()[i] = m;
    call.out[2].f64()[i] = v;
  }
  return {};
}

}  // namespace sgactor::kernels::reference
