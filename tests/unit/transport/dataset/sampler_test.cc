#include "transport/storage/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace sgactor::transport {
namespace {

/// Token i of the stream is i + 1.
class Counting : public TokenStream {
 public:
  explicit Counting(int64_t n) : n_(n) {}
  [[nodiscard]] int64_t num_tokens() const override { return n_; }
  [[nodiscard]] int64_t max_token() const override { return n_; }
  void read(int64_t begin, std::span<int32_t> out) const override {
    ASSERT_GE(begin, 0);
    ASSERT_LE(begin + std::ssize(out), n_);
    std::iota(out.begin(), out.end(), static_cast<int32_t>(begin + 1));
  }

 private:
  int64_t n_;
};

Sampler sampler(int64_t tokens, int64_t seq_len, int64_t batch, bool shuffle, uint64_t seed = 1) {
  return {std::make_shared<Counting>(tokens), seed, seq_len, batch, shuffle};
}

TEST(Sampler, WindowsCoverEveryTarget) {
  EXPECT_EQ(sampler(2, 4, 1, false).num_windows(), 1);
  EXPECT_EQ(sampler(5, 4, 1, false).num_windows(), 1);
  EXPECT_EQ(sampler(6, 4, 1, false).num_windows(), 2);
  EXPECT_EQ(sampler(9, 4, 1, false).num_windows(), 2);
}

TEST(Sampler, TargetsAreInputsShiftedByOne) {
  const Sampler s = sampler(11, 4, 3, false);
  std::vector<int32_t> tokens(12);
  std::vector<int32_t> targets(12);
  s.fill(1, 0, tokens, targets);
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0}));
  EXPECT_EQ(targets, (std::vector<int32_t>{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1}));
  EXPECT_EQ(s.valid_tokens(1), 10);
}

TEST(Sampler, RowsDoNotDependOnHowTheBatchIsCut) {
  const Sampler s = sampler(1000, 8, 6, true);
  std::vector<int32_t> tokens(48);
  std::vector<int32_t> targets(48);
  s.fill(7, 0, tokens, targets);
  for (int64_t row = 0; row < 6; row += 2) {
    std::vector<int32_t> x(16);
    std::vector<int32_t> y(16);
    s.fill(7, row, x, y);
    EXPECT_TRUE(std::equal(x.begin(), x.end(), tokens.begin() + row * 8));
    EXPECT_TRUE(std::equal(y.begin(), y.end(), targets.begin() + row * 8));
  }
}

TEST(Sampler, EachEpochIsOnePermutation) {
  for (const int64_t windows : {1, 2, 3, 4, 5, 16, 17, 100, 1023, 1024, 1025}) {
    const Sampler s = sampler(windows * 2 + 1, 2, 1, true);
    ASSERT_EQ(s.num_windows(), windows);
    std::vector<std::vector<int64_t>> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> order;
      for (int64_t i = 0; i < windows; ++i) order.push_back(s.window(epoch * windows + i + 1, 0));
      epochs.push_back(order);
      std::sort(order.begin(), order.end());
      for (int64_t i = 0; i < windows; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i) << windows;
    }
    if (windows >= 16) {
      EXPECT_NE(epochs[0], epochs[1]);
      EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
    }
  }
}

TEST(Sampler, AnEpochMayEndInsideABatch) {
  const Sampler s = sampler(7 * 2 + 1, 2, 4, true);
  std::map<int64_t, int> seen;
  for (int64_t step = 1; step <= 7; ++step)
    for (int64_t row = 0; row < 4; ++row) ++seen[s.window(step, row)];
  EXPECT_EQ(seen.size(), 7U);
  for (const auto& [window, times] : seen) EXPECT_EQ(times, 4) << window;
}

TEST(Sampler, SeedsGiveOtherOrders) {
  const Sampler a = sampler(2001, 2, 50, true, 1);
  const Sampler b = sampler(2001, 2, 50, true, 2);
  EXPECT_EQ(a.sample_hash(3), sampler(2001, 2, 50, true, 1).sample_hash(3));
  EXPECT_NE(a.sample_hash(3), b.sample_hash(3));
  EXPECT_NE(a.sample_hash(3), a.sample_hash(4));
  int same = 0;
  for (int64_t row = 0; row < 50; ++row) same += a.window(1, row) == b.window(1, row) ? 1 : 0;
  EXPECT_LT(same, 5);
}

// Neighbours in the stream must not stay neighbours in the order.
TEST(Sampler, OrderIsSpread) {
  const Sampler s = sampler(4001, 2, 1, true);
  std::set<int64_t> steps;
  double mean = 0;
  for (int64_t step = 1; step < 2000; ++step) {
    steps.insert(s.window(step + 1, 0) - s.window(step, 0));
    mean += static_cast<double>(s.window(step, 0)) / 1999.0;
  }
  EXPECT_GT(steps.size(), 1000U);
  EXPECT_NEAR(mean, 1000, 2);
  double head = 0;
  for (int64_t step = 1; step <= 200; ++step) head += static_cast<double>(s.window(step, 0)) / 200;
  EXPECT_NEAR(head, 1000, 150);
}

TEST(Sampler, CountsTheShortWindow) {
  const Sampler s = sampler(22, 4, 2, true);  // six windows, the last with one target
  int64_t sum = 0;
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<int32_t> x(8);
    std::vector<int32_t> y(8);
    s.fill(step, 0, x, y);
    const auto valid = std::count_if(y.begin(), y.end(), [](int32_t t) { return t >= 0; });
    EXPECT_EQ(s.valid_tokens(step), valid);
    sum += valid;
  }
  EXPECT_EQ(sum, 21);
}

}  // namespace
}  // namespace sgactor::transport
