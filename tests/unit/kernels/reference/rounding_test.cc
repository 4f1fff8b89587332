#include "kernels/reference/rounding.h"

#include "graph/base/f8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace sgactor::kernels::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Cells of every bit pattern of a dtype of one or two bytes, and the bytes that they encode to.
struct AllPatterns {
  std::vector<std::byte> native;
  std::vector<double> cells;
  std::vector<std::byte> again;
};
AllPatterns all_patterns(DType dtype) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype));
  const size_t n = size_t{1} << (8 * width);
  const TensorType type{dtype, Shape{static_cast<int64_t>(n)}};
  AllPatterns p{std::vector<std::byte>(n * width), std::vector<double>(n),
                std::vector<std::byte>(n * width)};
  for (size_t i = 0; i < n; ++i) {
    for (size_t b = 0; b < width; ++b)
      p.native[(i * width) + b] = static_cast<std::byte>(i >> (8 * b));
  }
  EXPECT_TRUE(decode(type, p.native, reinterpret_cast<std::byte*>(p.cells.data())).ok());
  EXPECT_TRUE(encode(type, reinterpret_cast<std::byte*>(p.cells.data()), p.again).ok());
  return p;
}

TEST(Rounding, EveryPatternOfANarrowFloatIsOnItsGrid) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    const AllPatterns p = all_patterns(dtype);
    const auto width = static_cast<size_t>(dtype_bytes(dtype));
    for (size_t i = 0; i < p.cells.size(); ++i) {
      const double x = p.cells[i];
      if (std::isnan(x)) continue;
      ASSERT_EQ(round_to(dtype, x), x) << i;
      ASSERT_EQ(std::memcmp(&p.native[i * width], &p.again[i * width], width), 0) << i;
    }
  }
}

TEST(Rounding, TiesGoToTheEvenNeighbour) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    const AllPatterns p = all_patterns(dtype);
    // Positive finite numbers stand in order of their bits: the even one of two neighbours has the
    // even pattern.
    for (size_t i = 0; i + 1 < p.cells.size() / 2; ++i) {
      const double low = p.cells[i];
      const double high = p.cells[i + 1];
      if (!std::isfinite(low) || !std::isfinite(high)) break;
      const double middle = (low + high) / 2;
      ASSERT_EQ(round_to(dtype, middle), i % 2 == 0 ? low : high) << i;
      ASSERT_EQ(round_to(dtype, -middle), i % 2 == 0 ? -low : -high) << i;
      ASSERT_EQ(round_to(dtype, std::nextafter(middle, kInf)), high) << i;
      ASSERT_EQ(round_to(dtype, std::nextafter(middle, 0)), low) << i;
    }
  }
}

TEST(Rounding, OverflowGoesToInfinityOrSaturates) {
  EXPECT_EQ(round_to(DType::kF16, 65519.9), 65504);
  EXPECT_EQ(round_to(DType::kF16, 65520), kInf);
  EXPECT_EQ(round_to(DType::kF8E5M2, -61440), -kInf);
  EXPECT_EQ(round_to(DType::kF8E4M3, 1e9), 448);
  EXPECT_EQ(round_to(DType::kF8E4M3, -kInf), -448);
  EXPECT_EQ(round_to(DType::kBF16, 1e300), kInf);
  EXPECT_TRUE(std::isnan(round_to(DType::kBF16, std::nan(""))));
  EXPECT_TRUE(std::signbit(round_to(DType::kBF16, -0.0)));
}

TEST(Rounding, WideFloatsAreKept) {
  EXPECT_EQ(round_to(DType::kF32, 0.1), 0.1);
  EXPECT_EQ(round_to(DType::kF64, 0.1), 0.1);
}

TEST(Rounding, KnownPatterns) {
  const TensorType type{DType::kF8E4M3, Shape{4}};
  const std::vector<double> cells = {1.0, -448, 0.001953125, 0};
  std::vector<std::byte> native(4);
  ASSERT_TRUE(encode(type, reinterpret_cast<const std::byte*>(cells.data()), native).ok());
  EXPECT_EQ(native, (std::vector<std::byte>{std::byte{0x38}, std::byte{0xfe}, std::byte{0x01},
                                            std::byte{0}}));
}

TEST(Rounding, WrongSizesAreErrors) {
  const TensorType type{DType::kF32, Shape{2}};
  std::vector<double> cells(2);
  std::vector<std::byte> native(7);
  EXPECT_EQ(decode(type, native, reinterpret_cast<std::byte*>(cells.data())).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(encode(type, reinterpret_cast<std::byte*>(cells.data()), native).code(),
            Code::kInvalidArgument);
}

/// Every number of 16 bits of float, and neighbours that make ties and near ties.
TEST(EightBitFloats, AgreeWithTheReferenceRounding) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const double largest = f8_format(dtype).largest;
    for (uint32_t high = 0; high < 0x10000U; ++high) {
      for (const uint32_t low : {0x0000U, 0x0001U, 0x8000U, 0xffffU}) {
        const auto x = std::bit_cast<float>(high << 16 | low);
        double want = round_to(dtype, x);
        if (std::fabs(want) > largest) want = std::copysign(largest, want);
        const double got = f8_to_float(dtype, float_to_f8(dtype, x));
        ASSERT_TRUE(std::isnan(x) ? std::isnan(got) : got == want)
            << dtype_name(dtype) << " of " << x << ": " << got << ", not " << want;
      }
    }
    const std::vector<double> cells = all_patterns(dtype).cells;
    for (size_t i = 0; i < cells.size(); ++i) {
      const double got = f8_values(dtype)[i];
      EXPECT_TRUE(std::isnan(cells[i]) ? std::isnan(got) : got == cells[i]) << i;
    }
  }
}

TEST(EightBitFloats, ScaleIsTheLeastPowerOfTwoThatFits) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const float largest = f8_format(dtype).largest;
    for (float amax = 1e-20F; amax < 1e20F; amax *= 1.37F) {
      const float scale = f8_scale(dtype, amax);
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5F);
      EXPECT_LE(amax / scale, largest);
      EXPECT_GT(amax / (scale / 2), largest);
    }
    EXPECT_EQ(f8_scale(dtype, largest), 1.0F);
    EXPECT_EQ(f8_scale(dtype, 1e-42F), 0x1p-100F);
  }
  EXPECT_EQ(f8_scale(DType::kF8E4M3, 0), 1.0F);
  EXPECT_EQ(f8_scale(DType::kF8E5M2, 0), 0x1p-14F);
  EXPECT_EQ(f8_scale(DType::kF8E4M3, std::numeric_limits<float>::quiet_NaN()), 1.0F);
}

}  // namespace
}  // namespace sgactor::kernels::reference
