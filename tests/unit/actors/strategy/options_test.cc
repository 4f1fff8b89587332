#include "actors/strategy/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sgactor::actors {
namespace {

StrategyOptions parse(const std::vector<std::string>& texts) {
  auto options = StrategyOptions::parse(texts);
  EXPECT_TRUE(options.ok()) << options.status().to_string();
  return options.ok() ? *options : StrategyOptions();
}

TEST(StrategyOptions, GivesValuesAndFallbacks) {
  const StrategyOptions o = parse({"interval=10", "lr=0.5", "mode=a=b", "empty="});
  EXPECT_EQ(o.integer("interval", 1, 1, 100).value(), 10);
  EXPECT_EQ(o.integer("other", 7, 1, 100).value(), 7);
  EXPECT_EQ(o.number("lr", 1, 0, 1).value(), 0.5);
  EXPECT_EQ(o.number("interval", 1, 0, 10).value(), 10.0);
  EXPECT_EQ(o.text("mode", ""), "a=b");
  EXPECT_EQ(o.text("empty", "x"), "");
  EXPECT_EQ(o.text("none", "x"), "x");
}

TEST(StrategyOptions, RefusesWhatIsNoPair) {
  for (const std::string text : {"", "interval", "=3"}) {
    const auto o = StrategyOptions::parse(std::vector<std::string>{text});
    EXPECT_EQ(o.status().message(), "expected \"name=value\", got \"" + text + "\"");
  }
  const auto twice = StrategyOptions::parse(std::vector<std::string>{"a=1", "a=1"});
  EXPECT_EQ(twice.status().message(), "option a is given twice");
}

TEST(StrategyOptions, NamesOptionLimitsAndValue) {
  const StrategyOptions o = parse({"n=12x", "big=1000", "nan=nan", "half=0.5"});
  EXPECT_EQ(o.integer("n", 1, 1, 9).status().message(),
            "option n: expected an integer from 1 to 9, got \"12x\"");
  EXPECT_FALSE(o.integer("big", 1, 1, 999).ok());
  EXPECT_FALSE(o.integer("half", 1, 0, 1).ok());
  EXPECT_EQ(o.number("nan", 0, 0, 2).status().message(),
            "option nan: expected a number from 0 to 2, got \"nan\"");
}

TEST(StrategyOptions, NamesUnknownOnes) {
  const StrategyOptions o = parse({"a=1", "b=2"});
  EXPECT_TRUE(o.check_known({"b", "a"}).ok());
  EXPECT_EQ(o.check_known({"a", "c"}).message(), "unknown option b; expected one of a, c");
  EXPECT_EQ(o.check_known({}).message(), "unknown option a; expected none");
}

}  // namespace
}  // namespace sgactor::actors
