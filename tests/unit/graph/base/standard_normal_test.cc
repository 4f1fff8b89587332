#include "graph/base/standard_normal.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor {
namespace {

/// Units in the last place of `want` that `got` is away.
double ulps(double got, double want) {
  const double unit = std::nextafter(std::abs(want), INFINITY) - std::abs(want);
  return std::abs(got - want) / unit;
}

TEST(StandardNormal, LogarithmIsTheLibrarysButForTheLastBits) {
  double worst = 0;
  const auto check = [&](double u) {
    worst =
        std::max(worst, u == 1 ? std::abs(portable_log(u)) : ulps(portable_log(u), std::log(u)));
  };
  for (const double u : {0x1p-53, 0x1.8p-53, 0x1p-20, 0.5, 0.70710678118654746, 0.70710678118654757,
                         1 - 0x1p-53, 1.0}) {
    check(u);
  }
  const PhiloxStream random{1, 2};
  for (uint64_t i = 0; i < 100000; ++i) check(random.uniform(i) + 0x1p-53);
  for (uint64_t i = 0; i < 10000; ++i) check(1 - random.uniform(i) * 0x1p-30);
  EXPECT_LE(worst, 2);
}

TEST(StandardNormal, CosineIsTheLibrarysButForTheLastBits) {
  const PhiloxStream random{3, 4};
  double worst = 0;
  const auto check = [&](double v) {
    const double want = std::cos(6.283185307179586476925 * v);
    worst = std::max(worst, std::abs(portable_cos_turns(v) - want));
  };
  for (int eighth = 0; eighth < 8; ++eighth) {
    check(eighth / 8.0);
    check(eighth / 8.0 + 0x1p-53);
  }
  for (uint64_t i = 0; i < 100000; ++i) check(random.uniform(i));
  // The library's argument is rounded: up to half a unit of 2 pi.
  EXPECT_LE(worst, 8e-16);
  EXPECT_EQ(portable_cos_turns(0), 1);
  EXPECT_EQ(portable_cos_turns(0.25), 0);
  EXPECT_EQ(portable_cos_turns(0.5), -1);
  EXPECT_EQ(portable_cos_turns(0.75), 0);
}

TEST(StandardNormal, IsBoxMullerOfThePhiloxStream) {
  const PhiloxStream stream{42, 9};
  for (uint64_t i = 0; i < 100000; ++i)
    ASSERT_NEAR(standard_normal(stream, i), stream.normal(i), 1e-14);
}

/// Bits that a model's start is made of: they may never change, on no machine.
TEST(StandardNormal, KnownBits) {
  EXPECT_EQ(standard_normal({1, 2}, 0), 0x1.0f42691aa2289p+0);
  EXPECT_EQ(standard_normal({1, 2}, 1), 0x1.0d2f5f8138958p-1);
  EXPECT_EQ(standard_normal({0x123456789abcdefULL, 0xfedcba9876543210ULL}, uint64_t{1} << 40),
            0x1.73172aee7dbcfp+0);
}

TEST(StandardNormal, WithoutSpreadThereIsTheMean) {
  EXPECT_EQ(normal_number({{1, 2}, 1, 0}, 3), 1);
  EXPECT_EQ(normal_number({{1, 2}, 0, 0}, 3), 0);
  EXPECT_EQ(normal_number({{1, 2}, 0, 0.02}, 3), 0.02 * standard_normal({1, 2}, 3));
}

}  // namespace
}  // namespace sgactor
