#include "graph/compiler/micro_batch_tuner.h"

#include "graph/base/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace sgactor::graph {
namespace {

/// Seconds of a step by size: each micro-batch costs a launch overhead, each sequence its work, and
/// sequences cost more where a micro-batch no longer fits the cache.
struct Device {
  int64_t batch = 64;
  double per_micro_batch = 0.004;
  double per_sequence = 0.002;
  int64_t cache_size = 8;
  double beyond_cache = 0.6;
  double noise = 0;

  [[nodiscard]] double mean(int64_t size) const {
    const double doublings =
        std::max(0.0, std::log2(static_cast<double>(size) / static_cast<double>(cache_size)));
    return static_cast<double>(batch / size) * per_micro_batch +
           static_cast<double>(batch) * per_sequence * (1 + beyond_cache * doublings);
  }
  [[nodiscard]] double step(int64_t size, uint64_t index) const {
    return mean(size) * (1 + noise * (2 * PhiloxStream{7, 1}.uniform(index) - 1));
  }
  [[nodiscard]] int64_t best(int64_t max = 1 << 20) const {
    int64_t found = 1;
    for (int64_t s = 1; s <= std::min(batch, max); ++s) {
      if (batch % s == 0 && mean(s) < mean(found)) found = s;
    }
    return found;
  }
};

struct Outcome {
  int64_t size = 0;
  int64_t steps = 0;    ///< until it settled
  int64_t changes = 0;  ///< of the size that runs
  std::vector<int64_t> ran;
};

/// Runs `num_steps` steps on a device that takes sizes up to `fits`.
Outcome run(const Device& device, int64_t start, int64_t num_steps, int64_t fits = 1 << 20) {
  TunerOptions options;
  options.batch = device.batch;
  options.start = start;
  auto made = MicroBatchTuner::create(options);
  SGA_CHECK(made.ok(), made.status().to_string());
  MicroBatchTuner& tuner = *made;
  Outcome out;
  out.ran.push_back(start);
  for (int64_t step = 0; step < num_steps; ++step) {
    EXPECT_LE(tuner.size(), fits);
    EXPECT_EQ(device.batch % tuner.size(), 0);
    tuner.observe({device.step(tuner.size(), static_cast<uint64_t>(step)), 0.5, 1e9});
    if (tuner.settled() || tuner.steps_needed() > 0) continue;
    TunerDecision d = tuner.decide();
    EXPECT_FALSE(d.reason.empty());
    while (tuner.size() > fits) d = tuner.reject("it needs more memory");
    out.steps = step + 1;
    if (tuner.size() != out.ran.back()) {
      ++out.changes;
      out.ran.push_back(tuner.size());
    }
  }
  EXPECT_TRUE(tuner.settled());
  std::set<int64_t> once(tuner.tried().begin(), tuner.tried().end());
  EXPECT_EQ(once.size(), tuner.tried().size()) << "a size was tried twice";
  out.size = tuner.size();
  return out;
}

TEST(MicroBatchTuner, FindsTheBestFromFourTimesTooSmallAndTooLarge) {
  for (const double noise : {0.0, 0.005}) {
    Device device;
    device.noise = noise;
    const int64_t best = device.best();
    ASSERT_EQ(best, 8);
    for (const int64_t wrong : {best / 4, best * 4}) {
      const Outcome out = run(device, wrong, 30);
      EXPECT_LE(out.steps, 30) << wrong;
      EXPECT_GE(device.mean(wrong) / device.mean(out.size), 1.17) << wrong << " -> " << out.size;
      EXPECT_LE(device.mean(out.size) / device.mean(best), 1.05) << wrong << " -> " << out.size;
    }
  }
}

TEST(MicroBatchTuner, NeverRunsWhatDoesNotFit) {
  Device device;
  device.cache_size = 64;
  for (const int64_t fits : {1, 2, 4, 16, 64}) {
    for (int64_t start = 1; start <= fits; start *= 2) {
      const Outcome out = run(device, start, 60, fits);
      EXPECT_EQ(out.size, device.best(fits)) << start << " of " << fits;
      EXPECT_LE(*std::max_element(out.ran.begin(), out.ran.end()), fits);
    }
  }
}

TEST(MicroBatchTuner, NoiseAloneMovesNothingForGood) {
  Device flat;
  flat.per_micro_batch = 0;
  flat.beyond_cache = 0;
  flat.noise = 0.005;
  for (const int64_t start : {1, 8, 64}) EXPECT_EQ(run(flat, start, 60).size, start);
}

TEST(MicroBatchTuner, LooksBetweenFactorsOfTwo) {
  Device device;
  device.batch = 96;
  device.cache_size = 12;
  device.beyond_cache = 3;
  ASSERT_EQ(device.best(), 12);
  for (const int64_t start : {2, 4, 8, 48, 96}) {
    const Outcome out = run(device, start, 60);
    EXPECT_LE(device.mean(out.size), 1.05 * device.mean(12)) << start << " -> " << out.size;
  }
}

TEST(MicroBatchTuner, AnyValleyIsFoundFromAnywhere) {
  const PhiloxStream draw{20240601, 2};
  uint64_t n = 0;
  for (int round = 0; round < 200; ++round) {
    Device device;
    device.batch = int64_t{1} << (2 + draw.below(n++, 7));
    device.per_micro_batch = 0.02 * draw.uniform(n++);
    device.cache_size = int64_t{1} << draw.below(n++, 6);
    device.beyond_cache = 0.2 + draw.uniform(n++);
    device.noise = 0.004;
    for (int64_t start = 1; start <= device.batch; start *= 2) {
      const Outcome out = run(device, start, 80);
      EXPECT_LE(device.mean(out.size), 1.06 * device.mean(device.best()))
          << "round " << round << ": " << start << " -> " << out.size;
      EXPECT_LE(out.changes, static_cast<int64_t>(out.ran.size()));
    }
  }
}

TEST(MicroBatchTuner, OneSizeIsSettledAtOnce) {
  TunerOptions options;
  const auto tuner = MicroBatchTuner::create(options);
  ASSERT_TRUE(tuner.ok());
  EXPECT_TRUE(tuner->settled());
  EXPECT_EQ(tuner->steps_needed(), 0);
}

TEST(MicroBatchTuner, RefusesWhatIsNoSize) {
  for (const auto& [batch, start] : {std::pair<int64_t, int64_t>{8, 3}, {8, 0}, {0, 1}, {8, 16}}) {
    TunerOptions options;
    options.batch = batch;
    options.start = start;
    EXPECT_EQ(MicroBatchTuner::create(options).status().code(), Code::kInvalidArgument);
  }
  TunerOptions options;
  options.measured_steps = 0;
  EXPECT_FALSE(MicroBatchTuner::create(options).ok());
}

TEST(MicroBatchTuner, TheSecondLookBetweenGoesToTheOtherSide) {
  TunerOptions options;
  options.batch = 120;
  options.start = 4;
  options.warmup_steps = 0;
  options.measured_steps = 1;
  auto tuner = MicroBatchTuner::create(options);
  ASSERT_TRUE(tuner.ok()) << tuner.status().to_string();
  // Best at 6, which no factor of two from 4 meets.
  const std::map<int64_t, double> seconds = {{4, 1.2}, {6, 0.8}, {8, 1.0}, {12, 1.4}, {20, 1.6}};
  while (!tuner->settled()) {
    ASSERT_TRUE(seconds.contains(tuner->size())) << tuner->size();
    tuner->observe({seconds.at(tuner->size()), 0, 0});
    (void)tuner->decide();
  }
  EXPECT_EQ(tuner->size(), 6);
  EXPECT_EQ(tuner->tried(), (std::vector<int64_t>{4, 8, 20, 12, 6}));
}

}  // namespace
}  // namespace sgactor::graph
