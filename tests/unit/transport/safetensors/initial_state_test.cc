#include "transport/storage/initial_state.h"

#include "graph/base/hash.h"
#include "graph/base/standard_normal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace sgactor::transport {
namespace {

const TensorType kMatrix{DType::kF32, Shape{64, 32}};

std::unique_ptr<StateSource> some_state(uint64_t seed) {
  return make_initial_state({{"a", kMatrix, 0.02, false},
                             {"b", kMatrix, 0.02, false},
                             {"one", kMatrix, 0, true},
                             {"zero", kMatrix, 0, false}},
                            seed);
}
std::vector<float> load(const StateSource& source, const std::string& name) {
  std::vector<float> out(static_cast<size_t>(kMatrix.num_elements()), -7);
  const Status s = source.load(name, kMatrix, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(s.ok()) << s.to_string();
  return out;
}

TEST(InitialState, IsAFunctionOfSeedNameAndElement) {
  const auto first = some_state(1);
  const auto a = load(*first, "a");
  EXPECT_EQ(a, load(*some_state(1), "a"));
  EXPECT_NE(a, load(*some_state(2), "a"));
  EXPECT_NE(a, load(*first, "b"));
  EXPECT_EQ(a[17], static_cast<float>(0.02 * standard_normal({1, hash64("a")}, 17)));
}

TEST(InitialState, TellsTheRuleOfWhatItDraws) {
  const auto state = with_zero_moments(some_state(5));
  for (const char* name : {"a", "b", "one", "zero"}) {
    const auto rule = state->numbers(name, kMatrix);
    ASSERT_TRUE(rule) << name;
    const auto loaded = load(*state, name);
    for (size_t i = 0; i < loaded.size(); ++i)
      ASSERT_EQ(loaded[i], static_cast<float>(normal_number(*rule, i))) << name << " " << i;
  }
  EXPECT_FALSE(state->numbers("m/a", kMatrix));
  EXPECT_FALSE(state->numbers("c", kMatrix));
  EXPECT_FALSE(state->numbers("a", {DType::kF32, Shape{4}}));
}

TEST(InitialState, HasTheSpreadAskedFor) {
  double sum = 0;
  double squares = 0;
  const auto a = load(*some_state(3), "a");
  for (const float x : a) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const auto n = static_cast<double>(a.size());
  EXPECT_LT(std::abs(sum / n), 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.02 * 4 / std::sqrt(2 * n));
}

TEST(InitialState, OnesAndZeros) {
  for (const float x : load(*some_state(1), "one")) EXPECT_EQ(x, 1);
  for (const float x : load(*some_state(1), "zero")) EXPECT_EQ(x, 0);
}

TEST(InitialState, MomentsAreZeroBesideAnySource) {
  const auto all = with_zero_moments(some_state(1));
  for (const float x : load(*all, "m/a")) EXPECT_EQ(x, 0);
  for (const float x : load(*all, "v/a")) EXPECT_EQ(x, 0);
  EXPECT_EQ(load(*all, "a"), load(*some_state(1), "a"));
}

TEST(InitialState, RefusesUnknownNamesAndOtherTypes) {
  const auto state = some_state(1);
  std::vector<float> out(4);
  const auto room = std::as_writable_bytes(std::span(out));
  EXPECT_EQ(state->load("c", {DType::kF32, Shape{4}}, room).code(), Code::kInvalidArgument);
  const Status s = state->load("a", {DType::kF32, Shape{4}}, room);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_NE(s.message().find("f32[64, 32]"), std::string::npos) << s.message();
}

}  // namespace
}  // namespace sgactor::transport
