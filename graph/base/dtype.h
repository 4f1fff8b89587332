#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace sgactor {

/// Element types. The text names are the ones of the IR: f64 f32 bf16 f16 f8e4m3 f8e5m2 i64 i32 u8.
enum class DType : uint8_t { kF64 = 0, kF32, kBF16, kF16, kF8E4M3, kF8E5M2, kI64, kI32, kU8 };

inline constexpr int kNumDTypes = 9;

/// Bytes of one element in its native storage.
constexpr int64_t dtype_bytes(DType t) {
  constexpr int64_t kBytes[kNumDTypes] = {8, 4, 2, 2, 1, 1, 8, 4, 1};
  return kBytes[static_cast<int>(t)];
}
constexpr bool is_float(DType t) { return t <= DType::kF8E5M2; }
std::string_view dtype_name(DType t);
std::optional<DType> parse_dtype(std::string_view name);

/// bfloat16 <-> float by bits. Rounds to nearest even; a NaN stays a (quiet) NaN.
uint16_t float_to_bf16(float value);
float bf16_to_float(uint16_t bits);
/// IEEE half. Rounds to nearest even, overflows to infinity.
uint16_t float_to_f16(float value);
float f16_to_float(uint16_t bits);

}  // namespace sgactor
