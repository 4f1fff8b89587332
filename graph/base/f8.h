#pragma once
#include "graph/base/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sgactor {

/// 8-bit floats (Micikevicius et al., "FP8 Formats for Deep Learning", 2022): f8e4m3 has no
/// infinity and ends at 448, f8e5m2 ends at 57344. Of other dtypes nothing here is defined.
struct F8Format {
  int mantissa_bits;
  int bias;
  float largest;
};
constexpr F8Format f8_format(DType dtype) {
  return dtype == DType::kF8E4M3 ? F8Format{3, 7, 448.0F} : F8Format{2, 15, 57344.0F};
}

/// What a tensor is divided by before it is rounded to `dtype`: the least power of two that brings
/// `amax` into range, between 2^-100 and 2^100, so that dividing is exact. Where nothing is known
/// of the tensor (amax is not above 0): 1 for f8e4m3, which holds activations and weights, and
/// 2^-14 for f8e5m2, which holds gradients of a mean over many tokens. Pre: amax is not infinite.
constexpr float f8_scale(DType dtype, float amax) {
  if (!(amax > 0)) return dtype == DType::kF8E4M3 ? 1.0F : 0x1p-14F;
  const auto bits = std::bit_cast<uint32_t>(amax / f8_format(dtype).largest);
  const int exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  return std::bit_cast<float>(static_cast<uint32_t>(std::clamp(exponent, -100, 100) + 127) << 23);
}

/// Scale, in f8e5m2, of gradients of logits before the factor of the loss: they lie in [-1, 1], so
/// that nothing need be seen, and with 16 bits of range below 1 few of a large vocabulary's
/// probabilities are lost.
inline constexpr float kLogitGradScale = 0x1p-15F;

/// Nearest value, ties to even; beyond the largest (infinity too) the largest. A NaN stays one.
inline uint8_t float_to_f8(DType dtype, float value) {
  const F8Format f = f8_format(dtype);
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint8_t>(sign | 0x7fU);
  magnitude = std::min(magnitude, std::bit_cast<uint32_t>(f.largest));
  if (magnitude < static_cast<uint32_t>(128 - f.bias) << 23) {  // below the least normal number
    const auto to_steps = static_cast<uint32_t>(126 + f.bias + f.mantissa_bits) << 23;
    const float steps = std::bit_cast<float>(magnitude) * std::bit_cast<float>(to_steps);
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(steps + 0x1p23F - 0x1p23F));
  }
  const int drop = 23 - f.mantissa_bits;
  const uint32_t rounded = magnitude + (1U << (drop - 1)) - 1 + ((magnitude >> drop) & 1U);
  const auto rebias = static_cast<uint32_t>(127 - f.bias) << f.mantissa_bits;
  return static_cast<uint8_t>(sign | ((rounded >> drop) - rebias));
}

inline float f8_to_float(DType dtype, uint8_t bits) {
  const F8Format f = f8_format(dtype);
  const float sign = (bits & 0x80U) != 0 ? -1.0F : 1.0F;
  const int biased = (bits & 0x7f) >> f.mantissa_bits;
  const int fraction = bits & ((1 << f.mantissa_bits) - 1);
  if (dtype == DType::kF8E4M3 && (bits & 0x7fU) == 0x7fU) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (dtype == DType::kF8E5M2 && biased == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  const int hidden = biased == 0 ? 0 : 1 << f.mantissa_bits;
  return sign * std::ldexp(static_cast<float>(fraction + hidden),
                           std::max(biased, 1) - f.bias - f.mantissa_bits);
}
/// f8_to_float of every byte.
inline std::array<float, 256> f8_values(DType dtype) {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = f8_to_float(dtype, static_cast<uint8_t>(i));
  }
  return values;
}

}  // namespace sgactor
