#pragma once
// Vectors of the native width and the functions that kernels are made of. Included only by
// family_*.cc, each of which is compiled once a family: everything here has internal linkage, so
// that no two families can share a compiled function.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#ifndef SGA_CPU_FAMILY
#error "SGA_CPU_FAMILY names the namespace of the family"
#endif

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

typedef float Vec __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntVec __attribute__((vector_size(kVectorBytes)));
typedef float VecUnaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef float HalfVec __attribute__((vector_size(kVectorBytes / 2)));
typedef float HalfVecUnaligned
    __attribute__((vector_size(kVectorBytes / 2), aligned(4), may_alias));
typedef double DoubleVec __attribute__((vector_size(kVectorBytes)));
constexpr int kHalfLanes = kLanes / 2;

#define SGA_INLINE inline __attribute__((always_inline))

SGA_INLINE Vec splat(float x) { return x - Vec{}; }
SGA_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
SGA_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
/// The first n < kLanes elements, the other lanes `fill`.
SGA_INLINE Vec load_part(const float* p, int64_t n, float fill = 0) {
#if defined(__AVX512F__)
  return _mm512_mask_loadu_ps(splat(fill), static_cast<__mmask16>((1U << n) - 1), p);
#else
  alignas(kVectorBytes) float lanes[kLanes];
  for (float& lane : lanes) lane = fill;
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}
SGA_INLINE void store_part(float* p, Vec v, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << n) - 1), v);
#else
  alignas(kVectorBytes) float lanes[kLanes];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

SGA_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
SGA_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

SGA_INLINE float horizontal_sum(Vec v) {
  alignas(kVectorBytes) float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
SGA_INLINE float horizontal_max(Vec v) {
  alignas(kVectorBytes) float lanes[kLanes];
  store(lanes, v);
  float m = lanes[0];
  for (int i = 1; i < kLanes; ++i) m = lanes[i] > m ? lanes[i] : m;
  return m;
}

/// e^x within 2 ulp; results below 2^-125 become 0, NaN stays NaN. Range reduction by ln 2 in two
/// parts and the polynomial of Cephes' expf (S. Moshier).
SGA_INLINE Vec exp(Vec x) {
  const Vec magic = splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec clamped = max(min(x, splat(89.0F)), splat(-90.0F));
  const Vec shifted = clamped * 1.44269504088896341F + magic;
  const Vec n = shifted - magic;
  Vec r = clamped - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  Vec p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // 2^(n-1) and a doubling, so that n = 128 (just below overflow) has an exponent that exists.
  const IntVec exponent = (reinterpret_cast<IntVec>(shifted) - 0x4B400000 + 126) << 23;
  Vec y = p * reinterpret_cast<Vec>(exponent) * 2.0F;
  y = x < splat(-86.5F) ? splat(0.0F) : y;
  y = x > splat(88.7228394F) ? splat(__builtin_inff()) : y;
  return x == x ? y : x;
}

SGA_INLINE Vec sigmoid(Vec x) { return 1.0F / (1.0F + exp(-x)); }

SGA_INLINE Vec sqrt(Vec x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, x);  // the plain form warns in GCC 12
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  return _mm_sqrt_ps(x);
#endif
}

/// y[i] = f(x[i]...) over n elements. An element's bits do not depend on where a block was cut: the
/// tail goes through the same vector code.
template <class F, class... X>
SGA_INLINE void map(int64_t n, float* y, F f, const X*... x) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)...));
  if (i < n) store_part(y + i, f(load_part(x + i, n - i)...), n - i);
}

/// Sum of f(x[i]...) over n elements: four vector accumulators, then a fixed tree. f of the padding
/// (all zero operands) must be 0.
template <class F, class... X>
SGA_INLINE float map_sum(int64_t n, F f, const X*... x) {
  Vec acc0 = {}, acc1 = {}, acc2 = {}, acc3 = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    acc0 += f(load(x + i)...);
    acc1 += f(load(x + i + kLanes)...);
    acc2 += f(load(x + i + 2 * kLanes)...);
    acc3 += f(load(x + i + 3 * kLanes)...);
  }
  for (; i + kLanes <= n; i += kLanes) acc0 += f(load(x + i)...);
  if (i < n) acc1 += f(load_part(x + i, n - i)...);
  return horizontal_sum((acc0 + acc1) + (acc2 + acc3));
}

SGA_INLINE float row_max(const float* x, int64_t n) {
  Vec m0 = splat(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    m0 = max(load(x + i), m0);
    m1 = max(load(x + i + kLanes), m1);
    m2 = max(load(x + i + 2 * kLanes), m2);
    m3 = max(load(x + i + 3 * kLanes), m3);
  }
  for (; i + kLanes <= n; i += kLanes) m0 = max(load(x + i), m0);
  if (i < n) m1 = max(load_part(x + i, n - i, -__builtin_inff()), m1);
  return horizontal_max(max(max(m0, m1), max(m2, m3)));
}

}  // namespace
}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
