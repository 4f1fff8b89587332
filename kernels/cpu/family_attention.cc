// The inner steps of attention on a block of scores with queries in lanes: s_CL holds C keys by L
// queries, L a multiple of the vector width. Sums over keys then need no shuffles, and the block
// has the layout of a packed operand.
#include "kernels/cpu/family_kernels.h"
#include "kernels/cpu/family_math.h"

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {
namespace {

SGA_INLINE IntVec lane_numbers() {
  IntVec lanes = {};
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

/// `x` in lanes >= first, `other` in those before.
SGA_INLINE Vec keep_from(Vec x, int64_t first, Vec other) {
  if (first <= 0) return x;
  const IntVec limit = static_cast<int32_t>(first) - IntVec{};
  return lane_numbers() >= limit ? x : other;
}

void attention_softmax(float* s, int64_t C, int64_t L, int64_t diagonal, float scale, float* max_L,
                       float* sum_L, float* correction_L) {
  const Vec factor = splat(scale);
  const Vec minus_infinity = splat(-__builtin_inff());
  for (int64_t lane = 0; lane < L; lane += kLanes) {
    float* column = s + lane;
    Vec top = load(max_L + lane);
    for (int64_t c = 0; c < C; ++c) {
      const Vec x = load(column + c * L) * factor;
      top = max(keep_from(x, c + diagonal - lane, minus_infinity), top);
    }
    // A query that has seen no key yet has the sum 0 whatever its correction is.
    const Vec old = load(max_L + lane);
    const Vec correction = old == top ? splat(1.0F) : exp(old - top);
    Vec total = load(sum_L + lane) * correction;
    for (int64_t c = 0; c < C; ++c) {
      const Vec p = exp(load(column + c * L) * factor - top);
      const Vec kept = keep_from(p, c + diagonal - lane, Vec{});
      store(column + c * L, kept);
      total += kept;
    }
    store(max_L + lane, top);
    store(sum_L + lane, total);
    store(correction_L + lane, correction);
  }
}

void attention_grad(float* s, float* dp, int64_t C, int64_t L, int64_t diagonal, float scale,
                    const float* lse_L, const float* delta_L) {
  const Vec factor = splat(scale);
  for (int64_t lane = 0; lane < L; lane += kLanes) {
    const Vec lse = load(lse_L + lane);
    const Vec delta = load(delta_L + lane);
    for (int64_t c = 0; c < C; ++c) {
      float* p_at = s + c * L + lane;
      float* dp_at = dp + c * L + lane;
      const Vec p = keep_from(exp(load(p_at) * factor - lse), c + diagonal - lane, Vec{});
      store(p_at, p);
      store(dp_at, p * (load(dp_at) - delta) * factor);
    }
  }
}

void scale_lanes(float* x, int64_t rows, int64_t L, const float* factor_L) {
  for (int64_t r = 0; r < rows; ++r, x += L) {
    for (int64_t lane = 0; lane < L; lane += kLanes) {
      store(x + lane, load(x + lane) * load(factor_L + lane));
    }
  }
}

}  // namespace

void add_attention_kernels(KernelTable& t) {
  t.attention_softmax = attention_softmax;
  t.attention_grad = attention_grad;
  t.scale_lanes = scale_lanes;
}

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
