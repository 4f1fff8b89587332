#include "apps/sgactor/text_sampler.h"

#include "apps/sgactor/printable.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace sgactor::apps {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SampleToken, ZeroTemperatureTakesTheLargestAndTheLowerIdOnTies) {
  SamplingOptions o;
  o.temperature = 0;
  EXPECT_EQ(sample_token(std::array{1.0F, 5.0F, 5.0F, 2.0F}, o, 0), 1);
  EXPECT_EQ(sample_token(std::array{std::nanf(""), 1.0F, kInf}, o, 0), 1);
}

TEST(SampleToken, FrequenciesFollowTheSoftmax) {
  const std::array logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  SamplingOptions o;
  o.temperature = 1;
  std::array<int, 3> counts{};
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sample_token(logits, o, i))];
  EXPECT_NEAR(counts[0] / double{kDraws}, 0.5, 0.02);
  EXPECT_NEAR(counts[1] / double{kDraws}, 0.3, 0.02);
  EXPECT_NEAR(counts[2] / double{kDraws}, 0.2, 0.02);
}

TEST(SampleToken, TopKLeavesOutTheRest) {
  const std::array logits = {0.0F, 2.0F, 1.0F, 0.5F};
  SamplingOptions o;
  o.temperature = 5;
  o.top_k = 2;
  std::array<int, 4> counts{};
  for (uint64_t i = 0; i < 500; ++i) ++counts[static_cast<size_t>(sample_token(logits, o, i))];
  EXPECT_EQ(counts[0] + counts[3], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[2], 0);
}

TEST(SampleToken, SeedAndIndexDecide) {
  const std::array<float, 64> flat{};
  SamplingOptions o;
  SamplingOptions other;
  other.seed = 2;
  int differing = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(sample_token(flat, o, i), sample_token(flat, o, i));
    differing += sample_token(flat, o, i) != sample_token(flat, other, i) ? 1 : 0;
  }
  EXPECT_GT(differing, 30);
}

TEST(SampleToken, AllImpossibleStillGivesAToken) {
  const std::array logits = {-kInf, std::nanf(""), -kInf};
  EXPECT_EQ(sample_token(logits, {}, 3), 0);
}

TEST(Printable, KeepsTextAndReplacesWhatDrivesATerminal) {
  const std::string replacement = "\xEF\xBF\xBD";
  EXPECT_EQ(printable("a\n\tb \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "a\n\tb \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(printable("\x1b[2J"), replacement + "[2J");
  EXPECT_EQ(printable("\xFFx"), replacement + "x");
  EXPECT_EQ(printable("\xC2\x9B"), replacement);                                  // C1 control
  EXPECT_EQ(printable("\xC0\xAF"), replacement + replacement);                    // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), replacement + replacement + replacement);  // surrogate
  EXPECT_EQ(printable("\xE2\x82"), replacement + replacement);                    // cut
}

TEST(Printable, OneLine) {
  EXPECT_EQ(one_line("a\nb\r\n"), "a b\xEF\xBF\xBD");
  EXPECT_EQ(one_line("a \n\n"), "a");
}

TEST(CompleteUtf8, EndsBetweenCharacters) {
  EXPECT_EQ(complete_utf8(""), 0U);
  EXPECT_EQ(complete_utf8("ab"), 2U);
  EXPECT_EQ(complete_utf8("a\xC3\xA9"), 3U);
  EXPECT_EQ(complete_utf8("a\xC3"), 1U);
  EXPECT_EQ(complete_utf8("a\xE2\x82"), 1U);
  EXPECT_EQ(complete_utf8("a\xF0\x9F\x98"), 1U);
  EXPECT_EQ(complete_utf8("\x80\x80\x80\x80"), 4U);  // no character will come of it
}

}  // namespace
}  // namespace sgactor::apps
