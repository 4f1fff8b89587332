#include "graph/base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace sgactor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The nearest value of `decode`'s 16-bit format, ties to an even code, found by looking at both
/// neighbours: slow, and independent of the code under test.
template <class Decode>
uint16_t nearest_code(float value, Decode decode, uint16_t below) {
  const auto above = static_cast<uint16_t>(below + 1);
  const double low = static_cast<double>(value) - static_cast<double>(decode(below));
  const double high = static_cast<double>(decode(above)) - static_cast<double>(value);
  if (low != high) return low < high ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_name(DType::kBF16), "bf16");
  EXPECT_EQ(parse_dtype("float"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DTypeTest, BytesAndKinds) {
  EXPECT_EQ(dtype_bytes(DType::kF64), 8);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kF8E5M2), 1);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8);
  EXPECT_TRUE(is_float(DType::kF8E5M2));
  EXPECT_FALSE(is_float(DType::kI64));
  EXPECT_FALSE(is_float(DType::kU8));
}

TEST(DTypeTest, EveryBf16SurvivesFloat) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = bf16_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << code;
    } else {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(DTypeTest, EveryF16SurvivesFloat) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = f16_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << code;
    } else {
      EXPECT_EQ(float_to_f16(value), bits);
    }
  }
}

TEST(DTypeTest, RoundsBetweenNeighboursToNearestEven) {
  // Between each pair of positive finite halves: a quarter, the middle, and one float either side.
  for (uint32_t code = 0; code < 0x7bff; ++code) {
    const auto below = static_cast<uint16_t>(code);
    const float a = f16_to_float(below);
    const float b = f16_to_float(static_cast<uint16_t>(code + 1));
    const float middle = a + (b - a) / 2;
    for (float value :
         {a + (b - a) / 4, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInf)}) {
      ASSERT_EQ(float_to_f16(value), nearest_code(value, f16_to_float, below)) << value;
      ASSERT_EQ(float_to_f16(-value), float_to_f16(value) | 0x8000U);
    }
  }
  for (uint32_t code = 0; code < 0x7f7f; code += 7) {
    const auto below = static_cast<uint16_t>(code);
    const float a = bf16_to_float(below);
    const float middle = std::bit_cast<float>((code << 16) | 0x8000U);
    for (float value : {middle, std::nextafter(middle, a), std::nextafter(middle, kInf)}) {
      ASSERT_EQ(float_to_bf16(value), nearest_code(value, bf16_to_float, below)) << value;
    }
  }
}

TEST(DTypeTest, LimitsOverflowToInfinity) {
  EXPECT_EQ(f16_to_float(float_to_f16(65504.0F)), 65504.0F);
  EXPECT_EQ(f16_to_float(float_to_f16(65519.99F)), 65504.0F);
  EXPECT_EQ(f16_to_float(float_to_f16(65520.0F)), kInf);
  EXPECT_EQ(f16_to_float(float_to_f16(-kInf)), -kInf);
  EXPECT_EQ(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max())), kInf);
  EXPECT_EQ(bf16_to_float(float_to_bf16(kInf)), kInf);
  EXPECT_EQ(float_to_f16(-0.0F), 0x8000U);
  EXPECT_EQ(float_to_bf16(-0.0F), 0x8000U);
}

TEST(DTypeTest, NanStaysNan) {
  // A signalling NaN whose upper half alone would read as infinity.
  const auto signalling = std::bit_cast<float>(0x7f800001U);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(signalling))));
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(signalling))));
}

}  // namespace
}  // namespace sgactor
