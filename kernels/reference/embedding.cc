// Positions, token tables and the loss. Letters: B batch, T time, H heads, K head dim, V
// vocabulary, D model dim, N rows.
#include "kernels/reference/kernels.h"
#include "kernels/reference/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace sgactor::kernels::reference {
namespace {

constexpr double kTwoPi = 6.283185307179586476925;

/// Frequency of pair `i`, scaled as Hugging Face's modeling_rope_utils.py scales it
/// (_compute_linear_scaling_rope_parameters, _compute_llama3_parameters).
double inverse_frequency(const graph::Attrs& a, int64_t i) {
  const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(a.i64("head_dim"));
  const double freq = std::pow(a.f64("theta"), -exponent);
  const std::string& scaling = a.text("scaling");
  if (scaling == "none") return freq;
  const double factor = a.f64("factor");
  if (scaling == "linear") return freq / factor;
  const double low = a.f64("low_freq_factor");
  const double high = a.f64("high_freq_factor");
  const auto context = static_cast<double>(a.i64("original_max_position"));
  const double wavelength = kTwoPi / freq;
  if (wavelength < context / high) return freq;
  if (wavelength > context / low) return freq / factor;
  const double smooth = ((context / wavelength) - low) / (high - low);
  return ((1.0 - smooth) * freq / factor) + (smooth * freq);
}

Status check_ids(const Tensor& ids, int64_t limit, bool negative_is_ignored, const char* what) {
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids.i64()[i];
    if (id < limit && (id >= 0 || negative_is_ignored)) continue;
    return invalid_argument(std::string(what) + " " + std::to_string(id) + " at position " +
                            std::to_string(i) + " is outside [0, " + std::to_string(limit) + ")");
  }
  return {};
}

}  // namespace

Status rope_table(const OpCall& call) {
  const graph::Attrs& a = call.op.attrs;
  const std::string& scaling = a.text("scaling");
  if (scaling != "none" && scaling != "linear" && scaling != "llama3")
    return invalid_argument("scaling is '" + scaling + "', not none, linear or llama3");
  const DType dtype = call.out[0].type->dtype;
  const int64_t num_pairs = a.i64("head_dim") / 2;
  for (int64_t t = 0; t < a.i64("seq_len"); ++t) {
    for (int64_t i = 0; i < num_pairs; ++i) {
      const double angle = static_cast<double>(t) * inverse_frequency(a, i);
      call.out[0].f64()[(t * num_pairs) + i] = round_to(dtype, std::cos(angle));
      call.out[1].f64()[(t * num_pairs) + i] = round_to(dtype, std::sin(angle));
    }
  }
  return {};
}

Status rotate(const OpCall& call) {
  const Tensor& x = call.in[0];
  const int64_t n_time = x.shape().dim(1);
  const int64_t n_heads = x.shape().dim(2);
  const int64_t half = x.shape().dim(3) / 2;
  const double sign = call.op.attrs.flag("inverse") ? -1.0 : 1.0;
  for (int64_t bth = 0; bth < x.shape().dim(0) * n_time * n_heads; ++bth) {
    const int64_t t = bth / n_heads % n_time;
    const double* x_K = x.f64() + (bth * 2 * half);
    double* y_K = call.out[0].f64() + (bth * 2 * half);
    for (int64_t i = 0; i < half; ++i) {
      const double cosine = call.in[1].f64()[(t * half) + i];
      const double sine = sign * call.in[2].f64()[(t * half) + i];
      y_K[i] = (x_K[i] * cosine) - (x_K[half + i] * sine);
      y_K[half + i] = (x_K[half + i] * cosine) + (x_K[i] * sine);
    }
  }
  return {};
}

Status gather(const OpCall& call) {
  const Tensor& table = call.in[0];
  const Tensor& ids = call.in[1];
  const int64_t n_rows = table.shape().dim(0);
  SGA_TRY(check_ids(ids, n_rows, false, "id"));
  const int64_t n_dims = n_rows == 0 ? 0 : table.size() / n_rows;
  for (int64_t i = 0; i < ids.size(); ++i) {
    for (int64_t d = 0; d < n_dims; ++d)
      call.out[0].i64()[(i * n_dims) + d] = table.i64()[(ids.i64()[i] * n_dims) + d];
  }
  return {};
}

Status scatter_add(const OpCall& call) {
  const Tensor& ids = call.in[0];
  const Tensor& y = call.out[0];
  const int64_t n_rows = y.shape().dim(0);
  SGA_TRY(check_ids(ids, n_rows, false, "id"));
  const int64_t n_dims = n_rows == 0 ? 0 : y.size() / n_rows;
  std::fill_n(y.f64(), y.size(), 0.0);
  for (int64_t i = 0; i < ids.size(); ++i) {
    for (int64_t d = 0; d < n_dims; ++d)
      y.f64()[(ids.i64()[i] * n_dims) + d] += call.in[1].f64()[(i * n_dims) + d];
  }
  return {};
}

Status cross_entropy(const OpCall& call) {
  const int64_t n_vocab = call.in[0].shape().dim(1);
  const Tensor& targets = call.in[1];
  SGA_TRY(check_ids(targets, n_vocab, true, "target"));
  double loss_sum = 0;
  for (int64_t n = 0; n < targets.size(); ++n) {
    const double* logits_V = call.in[0].f64() + (n * n_vocab);
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t v = 0; v < n_vocab; ++v) largest = std::max(largest, logits_V[v]);
    double sum = 0;
    for (int64_t v = 0; v < n_vocab; ++v) sum += std::exp(logits_V[v] - largest);
    const double lse = largest + std::log(sum);
    call.out[1].f64()[n] = lse;
    const int64_t target = targets.i64()[n];
    if (target >= 0) loss_sum += lse - logits_V[target];
  }
  call.out[0].f64()[0] = loss_sum;
  return {};
}

Status cross_entropy_grad(const OpCall& call) {
  const int64_t n_vocab = call.in[0].shape().dim(1);
  const Tensor& targets = call.in[1];
  SGA_TRY(check_ids(targets, n_vocab, true, "target"));
  const double dloss = call.in[3].f64()[0];
  for (int64_t n = 0; n < targets.size(); ++n) {
    const int64_t target = targets.i64()[n];
    for (int64_t v = 0; v < n_vocab; ++v) {
      const int64_t i = (n * n_vocab) + v;
      const double p = std::exp(call.in[0].f64()[i] - call.in[2].f64()[n]);
      call.out[0].f64()[i] = target < 0 ? 0.0 : (p - (v == target ? 1.0 : 0.0)) * dloss;
    }
  }
  return {};
}

}  // namespace sgactor::kernels::reference
