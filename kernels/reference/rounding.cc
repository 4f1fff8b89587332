#include "kernels/reference/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace sgactor::kernels::reference {
namespace {

struct Format {
  int mantissa_bits;  ///< stored, without the hidden one
  int min_exponent;   ///< of the smallest normal number
  double largest;
  bool saturates;  ///< else overflows to infinity
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {7, -126, 0x1.FEp127, false};
    case DType::kF16:
      return {10, -14, 65504.0, false};
    case DType::kF8E4M3:
      return {3, -6, 448.0, true};
    case DType::kF8E5M2:
      return {2, -14, 57344.0, false};
    default:
      return {52, -1022, std::numeric_limits<double>::max(), false};
  }
}

/// Bits of a value that already lies on the grid of an 8-bit format.
uint8_t f8_bits(DType dtype, double value) {
  const Format f = format_of(dtype);
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  if (std::isinf(value)) return static_cast<uint8_t>(sign | 0x7c);  // f8e5m2 only
  const double magnitude = std::fabs(value);
  if (magnitude < std::ldexp(1.0, f.min_exponent)) {
    return static_cast<uint8_t>(
        sign | static_cast<int>(std::ldexp(magnitude, f.mantissa_bits - f.min_exponent)));
  }
  const int exponent = std::ilogb(magnitude);
  const int fraction = static_cast<int>(std::ldexp(magnitude, f.mantissa_bits - exponent));
  const int biased = exponent - f.min_exponent + 1;
  return static_cast<uint8_t>(sign | (biased << f.mantissa_bits) |
                              (fraction - (1 << f.mantissa_bits)));
}

double f8_value(DType dtype, uint8_t bits) {
  const Format f = format_of(dtype);
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  const int fraction = bits & ((1 << f.mantissa_bits) - 1);
  const int biased = (bits & 0x7f) >> f.mantissa_bits;
  if (dtype == DType::kF8E4M3 && (bits & 0x7f) == 0x7f)
    return std::numeric_limits<double>::quiet_NaN();
  if (dtype == DType::kF8E5M2 && biased == 31) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (biased == 0) return sign * std::ldexp(fraction, f.min_exponent - f.mantissa_bits);
  return sign * std::ldexp(fraction + (1 << f.mantissa_bits),
                           biased - 1 + f.min_exponent - f.mantissa_bits);
}

template <class Native, class Cell, class Convert>
void convert_all(int64_t n, const std::byte* from, std::byte* to, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    Native native;
    std::memcpy(&native, from + (i * static_cast<int64_t>(sizeof native)), sizeof native);
    const Cell cell = static_cast<Cell>(convert(native));
    std::memcpy(to + (i * static_cast<int64_t>(sizeof cell)), &cell, sizeof cell);
  }
}

Status check_size(const TensorType& type, size_t bytes) {
  if (static_cast<int64_t>(bytes) == type.bytes()) return {};
  return invalid_argument("tensor " + type.to_string() + " takes " + std::to_string(type.bytes()) +
                          " bytes, not " + std::to_string(bytes));
}

}  // namespace

double round_to(DType dtype, double value) {
  if (dtype == DType::kF64 || dtype == DType::kF32) return value;
  if (value == 0 || !std::isfinite(value)) {
    const bool clamp = dtype == DType::kF8E4M3 && std::isinf(value);
    return clamp ? std::copysign(448.0, value) : value;
  }
  const Format f = format_of(dtype);
  const int exponent = std::max(std::ilogb(value), f.min_exponent);
  // Scaling by a power of two is exact; nearbyint rounds ties to even in the default mode.
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, f.mantissa_bits - exponent)),
                                    exponent - f.mantissa_bits);
  if (std::fabs(rounded) <= f.largest) return rounded;
  return std::copysign(f.saturates ? f.largest : std::numeric_limits<double>::infinity(), value);
}

Status decode(const TensorType& type, std::span<const std::byte> native, std::byte* cells) {
  SGA_TRY(check_size(type, native.size()));
  const int64_t n = type.num_elements();
  const std::byte* from = native.data();
  const auto same = [](auto x) { return x; };
  switch (type.dtype) {
    case DType::kF64:
    case DType::kI64:
      if (n > 0) std::memcpy(cells, from, native.size());
      break;
    case DType::kF32:
      convert_all<float, double>(n, from, cells, same);
      break;
    case DType::kBF16:
      convert_all<uint16_t, double>(n, from, cells, bf16_to_float);
      break;
    case DType::kF16:
      convert_all<uint16_t, double>(n, from, cells, f16_to_float);
      break;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      convert_all<uint8_t, double>(n, from, cells,
                                   [&](uint8_t bits) { return f8_value(type.dtype, bits); });
      break;
    case DType::kI32:
      convert_all<int32_t, int64_t>(n, from, cells, same);
      break;
    case DType::kU8:
      convert_all<uint8_t, int64_t>(n, from, cells, same);
      break;
  }
  return {};
}

Status encode(const TensorType& type, const std::byte* cells, std::span<std::byte> native) {
  SGA_TRY(check_size(type, native.size()));
  const int64_t n = type.num_elements();
  std::byte* to = native.data();
  const auto same = [](auto x) { return x; };
  // Rounded on the narrow grid first: going through float alone would round twice.
  const auto narrow = [&](double x) { return static_cast<float>(round_to(type.dtype, x)); };
  switch (type.dtype) {
    case DType::kF64:
    case DType::kI64:
      if (n > 0) std::memcpy(to, cells, native.size());
      break;
    case DType::kF32:
      convert_all<double, float>(n, cells, to, same);
      break;
    case DType::kBF16:
      convert_all<double, uint16_t>(n, cells, to,
                                    [&](double x) { return float_to_bf16(narrow(x)); });
      break;
    case DType::kF16:
      convert_all<double, uint16_t>(n, cells, to,
                                    [&](double x) { return float_to_f16(narrow(x)); });
      break;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      convert_all<double, uint8_t>(
          n, cells, to, [&](double x) { return f8_bits(type.dtype, round_to(type.dtype, x)); });
      break;
    case DType::kI32:
      convert_all<int64_t, int32_t>(n, cells, to, same);
      break;
    case DType::kU8:
      convert_all<int64_t, uint8_t>(n, cells, to, same);
      break;
  }
  return {};
}

}  // namespace sgactor::kernels::reference
