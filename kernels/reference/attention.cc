// Letters: B batch, T queries in time, S keys in time, H heads of queries, G groups (heads of keys
// and values), K head dim. Head h reads group h / (H / G); query t sees keys s <= t + (S - T).
#include "kernels/reference/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace sgactor::kernels::reference {
namespace {

struct Dims {
  int64_t B, T, S, H, G, K;
  double scale;
  bool causal;

  [[nodiscard]] int64_t num_keys(int64_t t) const {
    return causal ? std::clamp<int64_t>(t + (S - T) + 1, 0, S) : S;
  }
  /// Offset of the vector of K numbers at (b, time, head) in a [B, n_time, n_heads, K] tensor.
  [[nodiscard]] int64_t query(int64_t b, int64_t t, int64_t h) const {
    return ((b * T + t) * H + h) * K;
  }
  [[nodiscard]] int64_t key(int64_t b, int64_t s, int64_t h) const {
    return ((b * S + s) * G + (h / (H / G))) * K;
  }
  [[nodiscard]] int64_t row(int64_t b, int64_t t, int64_t h) const { return (b * H + h) * T + t; }
};

Dims dims_of(const OpCall& call, const Tensor& q, const Tensor& k) {
  return {.B = q.shape().dim(0),
          .T = q.shape().dim(1),
          .S = k.shape().dim(1),
          .H = q.shape().dim(2),
          .G = k.shape().dim(2),
          .K = q.shape().dim(3),
          .scale = call.op.attrs.f64("scale"),
          .causal = call.op.attrs.flag("causal")};
}

template <class F>
void for_each_query(const Dims& d, F visit) {
  for (int64_t b = 0; b < d.B; ++b) {
    for (int64_t h = 0; h < d.H; ++h) {
      for (int64_t t = 0; t < d.T; ++t) visit(b, t, h);
    }
  }
}

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(double factor, const double* x, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

}  // namespace

Status flash_attention(const OpCall& call) {
  const Dims d = dims_of(call, call.in[0], call.in[1]);
  const double* q = call.in[0].f64();
  const double* k = call.in[1].f64();
  const double* v = call.in[2].f64();
  double* o = call.out[0].f64();
  double* lse = call.out[1].f64();
  std::vector<double> score_S(static_cast<size_t>(d.S));
  for_each_query(d, [&](int64_t b, int64_t t, int64_t h) {
    const int64_t n_keys = d.num_keys(t);
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < n_keys; ++s) {
      const double x = d.scale * dot(q + d.query(b, t, h), k + d.key(b, s, h), d.K);
      score_S[static_cast<size_t>(s)] = x;
      largest = std::max(largest, x);
    }
    double sum = 0;
    for (int64_t s = 0; s < n_keys; ++s) sum += std::exp(score_S[static_cast<size_t>(s)] - largest);
    lse[d.row(b, t, h)] = largest + std::log(sum);
    double* o_K = o + d.query(b, t, h);
    std::fill_n(o_K, d.K, 0.0);
    for (int64_t s = 0; s < n_keys; ++s) {
      const double p = std::exp(score_S[static_cast<size_t>(s)] - largest) / sum;
      add_scaled(p, v + d.key(b, s, h), d.K, o_K);
    }
  });
  return {};
}

Status flash_attention_grad(const OpCall& call) {
  const Tensor& grad = call.in[0];
  const Dims d = dims_of(call, call.in[1], call.in[2]);
  const double* q = call.in[1].f64();
  const double* k = call.in[2].f64();
  const double* v = call.in[3].f64();
  const double* o = call.in[4].f64();
  const double* lse = call.in[5].f64();
  double* dq = call.out[0].f64();
  double* dk = call.out[1].f64();
  double* dv = call.out[2].f64();
  for (const Tensor& result : call.out) std::fill_n(result.f64(), result.size(), 0.0);
  for_each_query(d, [&](int64_t b, int64_t t, int64_t h) {
    const int64_t at = d.query(b, t, h);
    const double* do_K = grad.f64() + at;
    const double delta = dot(do_K, o + at, d.K);
    for (int64_t s = 0; s < d.num_keys(t); ++s) {
      const int64_t key = d.key(b, s, h);
      const double p = std::exp((d.scale * dot(q + at, k + key, d.K)) - lse[d.row(b, t, h)]);
      const double dscore = d.scale * p * (dot(do_K, v + key, d.K) - delta);
      add_scaled(p, do_K, d.K, dv + key);
      add_scaled(dscore, k + key, d.K, dq + at);
      add_scaled(dscore, q + at, d.K, dk + key);
    }
  });
  return {};
}

}  // namespace sgactor::kernels::reference
