#include "transport/storage/pretokenizer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace sgactor::transport {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces split(SplitPattern pattern, std::string_view text) {
  Pieces pieces;
  split_by_pattern(pattern, text, pieces);
  return pieces;
}

TEST(Pretokenizer, Gpt2KeepsASpaceBeforeAWord) {
  EXPECT_EQ(split(SplitPattern::kGpt2, "I'll go, 12 's  x\n\n y"),
            (Pieces{"I", "'ll", " go", ",", " 12", " '", "s", " ", " x", "\n\n", " y"}));
}

TEST(Pretokenizer, Llama3GroupsThreeDigitsAndNewlines) {
  EXPECT_EQ(split(SplitPattern::kLlama3, "I'LL 1234!\n\n(x)  \n z  "),
            (Pieces{"I", "'LL", " ", "123", "4", "!\n\n", "(x", ")", "  \n", " z", "  "}));
}

TEST(Pretokenizer, Qwen2TakesOneDigitAtATime) {
  EXPECT_EQ(split(SplitPattern::kQwen2, "a 42\tb"), (Pieces{"a", " ", "4", "2", "\tb"}));
}

TEST(Pretokenizer, SplitsDigitsOneByOneOrInRuns) {
  Pieces single;
  split_digits(true, "a12 b", single);
  EXPECT_EQ(single, (Pieces{"a", "1", "2", " b"}));
  Pieces runs;
  split_digits(false, "12a34", runs);
  EXPECT_EQ(runs, (Pieces{"12", "a", "34"}));
}

TEST(Pretokenizer, PiecesJoinToTheTextWhateverItsBytes) {
  const std::string alphabet = "a1 \n\r'sLl.\xff\xc3\xa9\xe2\x80\xa8\xcc";
  uint64_t state = 1;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      text += alphabet[(state >> 33) % alphabet.size()];
    }
    for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
      const Pieces pieces = split(pattern, text);
      std::string joined;
      for (const std::string_view piece : pieces) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

}  // namespace
}  // namespace sgactor::transport
