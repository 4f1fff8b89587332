// The last matmul and the loss in one. Letters: N rows, D model dim, V vocabulary.
#include "graph/base/f8.h"
#include "kernels/reference/kernels.h"
#include "kernels/reference/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sgactor::kernels::reference {
namespace {

struct Head {
  const Tensor& x;
  const Tensor& w;
  const Tensor& targets;
  double scale_x = 1;  ///< in 8 bits: what x and w are multiplied by
  double scale_w = 1;
  bool rounds_gradients = false;
  int64_t num_rows = x.shape().dim(0);
  int64_t num_dims = x.shape().dim(1);
  int64_t num_vocab = w.shape().dim(0);
};

Status check_targets(const Head& h) {
  for (int64_t n = 0; n < h.num_rows; ++n) {
    if (h.targets.i64()[n] < h.num_vocab) continue;
    return invalid_argument("target " + std::to_string(h.targets.i64()[n]) + " at position " +
                            std::to_string(n) + " is outside [0, " + std::to_string(h.num_vocab) +
                            ")");
  }
  return {};
}

/// Operands of linear_cross_entropy_grad; 8-bit ones have their scales behind them.
Head gradient_head(const OpCall& call) {
  Head h{call.in[1], call.in[2], call.in[3]};
  if (call.in.size() < 7) return h;
  h.scale_x = call.in[5].f64()[0];
  h.scale_w = call.in[6].f64()[0];
  h.rounds_gradients = true;
  return h;
}

std::vector<double> logits_of_row(const Head& h, int64_t n) {
  std::vector<double> logits_V(static_cast<size_t>(h.num_vocab), 0.0);
  for (int64_t v = 0; v < h.num_vocab; ++v) {
    double& logit = logits_V[static_cast<size_t>(v)];
    for (int64_t d = 0; d < h.num_dims; ++d) {
      logit += h.x.f64()[(n * h.num_dims) + d] * h.w.f64()[(v * h.num_dims) + d];
    }
    logit *= h.scale_x * h.scale_w;
  }
  return logits_V;
}

double log_sum_exp(const std::vector<double>& logits_V) {
  double largest = -std::numeric_limits<double>::infinity();
  for (double logit : logits_V) largest = std::max(largest, logit);
  double sum = 0;
  for (double logit : logits_V) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

Status linear_cross_entropy(const OpCall& call) {
  const Head h{call.in[0], call.in[1], call.in[2]};
  SGA_TRY(check_targets(h));
  double loss = 0;
  for (int64_t n = 0; n < h.num_rows; ++n) {
    const std::vector<double> logits_V = logits_of_row(h, n);
    const double lse = log_sum_exp(logits_V);
    const int64_t target = h.targets.i64()[n];
    if (target >= 0) loss += lse - logits_V[static_cast<size_t>(target)];
    call.out[1].f64()[n] = lse;
  }
  call.out[0].f64()[0] = loss;
  return {};
}

Status linear_cross_entropy_grad(const OpCall& call) {
  const Head h = gradient_head(call);
  SGA_TRY(check_targets(h));
  const double dloss = call.in[4].f64()[0];
  double* dw_VD = call.out[0].f64();
  double* dx_ND = call.out[1].f64();
  std::copy_n(call.in[0].f64(), call.in[0].size(), dw_VD);
  std::fill_n(dx_ND, call.out[1].size(), 0.0);
  double loss = 0;
  for (int64_t n = 0; n < h.num_rows; ++n) {
    const int64_t target = h.targets.i64()[n];
    if (target < 0) continue;
    const std::vector<double> logits_V = logits_of_row(h, n);
    const double lse = log_sum_exp(logits_V);
    loss += lse - logits_V[static_cast<size_t>(target)];
    for (int64_t v = 0; v < h.num_vocab; ++v) {
      const double p = std::exp(logits_V[static_cast<size_t>(v)] - lse);
      double dlogit = p - (v == target ? 1.0 : 0.0);
      if (h.rounds_gradients) {
        dlogit = round_to(DType::kF8E5M2, dlogit / kLogitGradScale) * kLogitGradScale;
      }
      dlogit *= dloss;
      for (int64_t d = 0; d < h.num_dims; ++d) {
        dx_ND[(n * h.num_dims) + d] += dlogit * h.w.f64()[(v * h.num_dims) + d] * h.scale_w;
        dw_VD[(v * h.num_dims) + d] += dlogit * h.x.f64()[(n * h.num_dims) + d] * h.scale_x;
      }
    }
  }
  call.out[2].f64()[0] = loss;
  return {};
}

}  // namespace sgactor::kernels::reference
