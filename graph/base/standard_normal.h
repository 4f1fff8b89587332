#pragma once
#include "graph/base/normal_numbers.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SGA_HOST_DEVICE __host__ __device__
#else
#define SGA_HOST_DEVICE
#endif

/// Normal numbers with the same bits on every host and on a GPU: additions, multiplications,
/// divisions and square roots of f64 in a fixed order, no function of a maths library. That holds
/// only where products and sums are not contracted: sources that include this are compiled with
/// -ffp-contract=off or --fmad=false. Internal linkage, so that no other source's code is taken.
namespace sgactor {

/// Natural logarithm of u in [2^-53, 1], within 2 units in the last place: u = m * 2^e with m
/// around 1, and log m = 2 atanh((m - 1) / (m + 1)) by its series.
SGA_HOST_DEVICE static inline double portable_log(double u) {
  uint64_t bits = 0;
  std::memcpy(&bits, &u, sizeof bits);
  auto exponent = static_cast<int32_t>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL;
  double m = 0;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0;
  const double s = f / (m + 1.0);
  const double z = s * s;
  double series = 1.0 / 21.0;
  series = series * z + 1.0 / 19.0;
  series = series * z + 1.0 / 17.0;
  series = series * z + 1.0 / 15.0;
  series = series * z + 1.0 / 13.0;
  series = series * z + 1.0 / 11.0;
  series = series * z + 1.0 / 9.0;
  series = series * z + 1.0 / 7.0;
  series = series * z + 1.0 / 5.0;
  series = series * z + 1.0 / 3.0;
  const double log_m = 2.0 * s + 2.0 * s * (z * series);
  // log 2 in two parts; products of the first with an exponent are exact.
  constexpr double kLog2High = 0x1.62e42feep-1;
  constexpr double kLog2Low = 0x1.a39ef35793c76p-33;
  const auto e = static_cast<double>(exponent);
  return e * kLog2High + (log_m + e * kLog2Low);
}

/// cos(2 pi v) for v in [0, 1) that is a multiple of 2^-53: the nearest quarter turn is taken off
/// without rounding, the rest is at most pi/4 and goes through the series of sine and cosine.
SGA_HOST_DEVICE static inline double portable_cos_turns(double v) {
  const auto quarter = static_cast<int32_t>(v * 4.0 + 0.5);
  const double x = (v - static_cast<double>(quarter) * 0.25) * 6.283185307179586476925;
  const double z = x * x;
  double cosine = 1.0 / 20922789888000.0;  // 1 / 16!
  cosine = cosine * z - 1.0 / 87178291200.0;
  cosine = cosine * z + 1.0 / 479001600.0;
  cosine = cosine * z - 1.0 / 3628800.0;
  cosine = cosine * z + 1.0 / 40320.0;
  cosine = cosine * z - 1.0 / 720.0;
  cosine = cosine * z + 1.0 / 24.0;
  cosine = cosine * z - 0.5;
  cosine = cosine * z + 1.0;
  double sine = 1.0 / 355687428096000.0;  // 1 / 17!
  sine = sine * z - 1.0 / 1307674368000.0;
  sine = sine * z + 1.0 / 6227020800.0;
  sine = sine * z - 1.0 / 39916800.0;
  sine = sine * z + 1.0 / 362880.0;
  sine = sine * z - 1.0 / 5040.0;
  sine = sine * z + 1.0 / 120.0;
  sine = sine * z - 1.0 / 6.0;
  sine = x + x * (z * sine);
  const double even = (quarter & 1) == 0 ? cosine : sine;
  return quarter == 1 || quarter == 2 ? -even : even;
}

/// Standard normal number `i` (Box-Muller): PhiloxStream::normal but for the last bits.
SGA_HOST_DEVICE static inline double standard_normal(const PhiloxStream& stream, uint64_t i) {
  const auto w = stream.block(i);
  const double u =
      (static_cast<double>((static_cast<uint64_t>(w[1]) << 32 | w[0]) >> 11) + 1.0) * 0x1p-53;
  const double v = static_cast<double>((static_cast<uint64_t>(w[3]) << 32 | w[2]) >> 11) * 0x1p-53;
  return std::sqrt(-2.0 * portable_log(u)) * portable_cos_turns(v);
}

/// Element i of a tensor of `numbers`.
SGA_HOST_DEVICE static inline double normal_number(const NormalNumbers& numbers, uint64_t i) {
  return numbers.std == 0 ? numbers.mean
                          : numbers.mean + numbers.std * standard_normal(numbers.stream, i);
}

}  // namespace sgactor

#undef SGA_HOST_DEVICE
