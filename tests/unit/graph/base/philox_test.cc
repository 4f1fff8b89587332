#include "graph/base/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace sgactor {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that come with Random123, the authors' implementation (philox4x32, 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  const uint32_t f = 0xffffffffU;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}),
            (Words{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(
      philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
      (Words{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(PhiloxTest, StreamsAndElementsDiffer) {
  const PhiloxStream a{1, 2};
  const PhiloxStream b{1, 3};
  const PhiloxStream c{2, 2};
  EXPECT_NE(a.bits64(0), a.bits64(1));
  EXPECT_NE(a.bits64(0), a.bits64(2));
  EXPECT_NE(a.bits64(0), b.bits64(0));
  EXPECT_NE(a.bits64(0), c.bits64(0));
  EXPECT_EQ(a.bits64(5), (PhiloxStream{1, 2}.bits64(5)));
  // Counters beyond 32 bits reach the second word.
  EXPECT_NE(a.bits64(0), a.bits64(uint64_t{1} << 33));
}

TEST(PhiloxTest, UniformFillsTheUnitInterval) {
  const PhiloxStream stream{42, 7};
  constexpr int kCount = 100000;
  constexpr int kBins = 20;
  std::vector<int> bins(kBins);
  double sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = stream.uniform(static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
    sum += u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  double chi2 = 0;
  for (int n : bins) chi2 += (n - kCount / kBins) * (n - kCount / kBins) / double(kCount / kBins);
  EXPECT_LT(chi2, 43.8);  // 19 degrees of freedom, probability 0.001
}

TEST(PhiloxTest, BelowStaysBelow) {
  const PhiloxStream stream{42, 8};
  std::vector<int> counts(7);
  for (uint64_t i = 0; i < 7000; ++i) ++counts[stream.below(i, 7)];
  for (int n : counts) EXPECT_NEAR(n, 1000, 150);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(stream.below(i, 1), 0U);
}

TEST(PhiloxTest, NormalHasItsMoments) {
  const PhiloxStream stream{42, 9};
  constexpr int kCount = 100000;
  double m1 = 0;
  double m2 = 0;
  double m4 = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.normal(static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    m1 += x / kCount;
    m2 += x * x / kCount;
    m4 += x * x * x * x / kCount;
  }
  EXPECT_NEAR(m1, 0, 0.015);
  EXPECT_NEAR(m2, 1, 0.02);
  EXPECT_NEAR(m4, 3, 0.2);
}

}  // namespace
}  // namespace sgactor
