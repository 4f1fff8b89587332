// Kernels over rows: sums, softmax, norms, rotation. Letters as in kernel_table.h.
#include "kernels/cpu/family_kernels.h"
#include "kernels/cpu/family_math.h"

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {
namespace {

SGA_INLINE Vec identity(Vec v) { return v; }
SGA_INLINE Vec product(Vec a, Vec b) { return a * b; }
SGA_INLINE Vec squared(Vec v) { return v * v; }

float sum(const float* x, int64_t n) { return map_sum(n, identity, x); }
float max_of(const float* x, int64_t n) { return row_max(x, n); }
float dot(const float* a, const float* b, int64_t n) { return map_sum(n, product, a, b); }

SGA_INLINE void add_squares(DoubleVec* acc, Vec v) {
  alignas(kVectorBytes) float lanes[kLanes];
  store(lanes, v);
  const DoubleVec low =
      __builtin_convertvector(*reinterpret_cast<const HalfVecUnaligned*>(lanes), DoubleVec);
  const DoubleVec high = __builtin_convertvector(
      *reinterpret_cast<const HalfVecUnaligned*>(lanes + kHalfLanes), DoubleVec);
  acc[0] += low * low;
  acc[1] += high * high;
}

double sum_squares(const float* x, int64_t n) {
  DoubleVec acc[4] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    add_squares(acc, load(x + i));
    add_squares(acc + 2, load(x + i + kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) add_squares(acc, load(x + i));
  if (i < n) add_squares(acc + 2, load_part(x + i, n - i));
  const DoubleVec total = (acc[0] + acc[1]) + (acc[2] + acc[3]);
  double result = 0;
  for (int lane = 0; lane < kHalfLanes; ++lane) result += total[lane];
  return result;
}

/// y = exp(x - shift), returns its sum. Padding lanes hold -inf, whose exp is 0.
SGA_INLINE float exp_and_sum(float* y, const float* x, int64_t n, Vec shift) {
  Vec acc0 = {};
  Vec acc1 = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec e0 = exp(load(x + i) - shift);
    const Vec e1 = exp(load(x + i + kLanes) - shift);
    if (y != nullptr) {
      store(y + i, e0);
      store(y + i + kLanes, e1);
    }
    acc0 += e0;
    acc1 += e1;
  }
  for (; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const Vec v = rest >= kLanes ? load(x + i) : load_part(x + i, rest, -__builtin_inff());
    const Vec e = exp(v - shift);
    if (y != nullptr && rest >= kLanes) store(y + i, e);
    if (y != nullptr && rest < kLanes) store_part(y + i, e, rest);
    acc0 += e;
  }
  return horizontal_sum(acc0 + acc1);
}

SGA_INLINE void scale_row(float* y, int64_t n, float factor) {
  const Vec f = splat(factor);
  map(
      n, y, [f](Vec v) { return v * f; }, static_cast<const float*>(y));
}

void softmax(float* y, const float* x, int64_t R, int64_t D) {
  for (int64_t r = 0; r < R; ++r, y += D, x += D) {
    const float total = exp_and_sum(y, x, D, splat(row_max(x, D)));
    scale_row(y, D, 1.0F / total);
  }
}

void softmax_grad(float* dx, const float* y, const float* dy, int64_t R, int64_t D) {
  for (int64_t r = 0; r < R; ++r, dx += D, y += D, dy += D) {
    const Vec delta = splat(dot(y, dy, D));
    map(
        D, dx, [delta](Vec p, Vec dp) { return p * (dp - delta); }, y, dy);
  }
}

SGA_INLINE void normalise(float* y, float* rstd, const float* x, const float* w, int64_t D,
                          float eps) {
  const float mean = map_sum(D, squared, x) / static_cast<float>(D);
  *rstd = 1.0F / __builtin_sqrtf(mean + eps);
  const Vec scale = splat(*rstd);
  map(
      D, y, [scale](Vec v, Vec weight) { return v * scale * weight; }, x, w);
}

void rms_norm(float* y, float* rstd, const float* x, const float* w, int64_t R, int64_t D,
              float eps) {
  for (int64_t r = 0; r < R; ++r) normalise(y + r * D, rstd + r, x + r * D, w, D, eps);
}

void add_rms_norm(float* s, float* y, float* rstd, const float* x, const float* r, const float* w,
                  int64_t R, int64_t D, float eps) {
  for (int64_t row = 0; row < R; ++row) {
    float* sum_row = s + row * D;
    map(
        D, sum_row, [](Vec a, Vec b) { return a + b; }, x + row * D, r + row * D);
    normalise(y + row * D, rstd + row, sum_row, w, D, eps);
  }
}

/// With xhat = x * rstd: dx = rstd * (dy * w - xhat * mean(dy * w * xhat)), dw = sum of dy * xhat.
void rms_norm_grad(float* dx, float* dw, const float* dy, const float* ds, const float* x,
                   const float* w, const float* rstd, int64_t R, int64_t D) {
  std::memset(dw, 0, static_cast<size_t>(D) * sizeof(float));
  for (int64_t r = 0; r < R; ++r, dx += D, dy += D, x += D) {
    const float projected = map_sum(
                                D, [](Vec a, Vec b, Vec c) { return a * b * c; }, dy, w, x) *
                            rstd[r] * rstd[r] / static_cast<float>(D);
    const Vec scale = splat(rstd[r]);
    const Vec mean = splat(projected);
    map(
        D, dw, [scale](Vec acc, Vec g, Vec v) { return acc + g * (v * scale); },
        static_cast<const float*>(dw), dy, x);
    if (ds == nullptr) {
      map(
          D, dx, [=](Vec g, Vec weight, Vec v) { return scale * (g * weight - v * mean); }, dy, w,
          x);
    } else {
      map(
          D, dx,
          [=](Vec g, Vec weight, Vec v, Vec s) { return s + scale * (g * weight - v * mean); }, dy,
          w, x, ds);
      ds += D;
    }
  }
}

SGA_INLINE void rotate_lanes(Vec x1, Vec x2, Vec c, Vec s, Vec& y1, Vec& y2) {
  y1 = x1 * c - x2 * s;
  y2 = x2 * c + x1 * s;
}

void rotate(float* y, const float* x, const float* cos, const float* sin, int64_t H, int64_t K,
            float sign) {
  const int64_t half = K / 2;
  Vec y1;
  Vec y2;
  for (int64_t h = 0; h < H; ++h, x += K, y += K) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      rotate_lanes(load(x + i), load(x + half + i), load(cos + i), load(sin + i) * sign, y1, y2);
      store(y + i, y1);
      store(y + half + i, y2);
    }
    if (i < half) {
      const int64_t n = half - i;
      rotate_lanes(load_part(x + i, n), load_part(x + half + i, n), load_part(cos + i, n),
                   load_part(sin + i, n) * sign, y1, y2);
      store_part(y + i, y1, n);
      store_part(y + half + i, y2, n);
    }
  }
}

float log_sum_exp(const float* x, int64_t n) {
  const float top = row_max(x, n);
  return top + __builtin_logf(exp_and_sum(nullptr, x, n, splat(top)));
}

void exp_shifted(float* y, const float* x, int64_t n, float lse, float scale) {
  const Vec shift = splat(lse);
  const Vec factor = splat(scale);
  map(
      n, y, [=](Vec v) { return exp(v - shift) * factor; }, x);
}

}  // namespace

void add_row_kernels(KernelTable& t) {
  t.sum = sum;
  t.max = max_of;
  t.dot = dot;
  t.sum_squares = sum_squares;
  t.softmax = softmax;
  t.softmax_grad = softmax_grad;
  t.rms_norm = rms_norm;
  t.add_rms_norm = add_rms_norm;
  t.rms_norm_grad = rms_norm_grad;
  t.rotate = rotate;
  t.log_sum_exp = log_sum_exp;
  t.exp_shifted = exp_shifted;
}

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
