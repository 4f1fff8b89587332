// The mutation check: each rule of the protocol switched off alone must be noticed by the random
// schedules. A rule that nobody misses is either not needed or not tested.
#include "supervision/chaos/simulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sgactor::supervision {
namespace {

class Guard : public testing::TestWithParam<GuardName> {};

TEST_P(Guard, IsMissedWithinAThousandSeeds) {
  SimulationOptions options;
  options.last_seed = 1000;
  options.guards.*(GetParam().member) = false;
  options.max_failures = 1;
  options.trace_events = 0;
  const auto sum = simulate_seeds(options);
  ASSERT_TRUE(sum.ok()) << sum.status().to_string();
  const bool found = sum->divergences + sum->stuck > 0 || sum->survivors_reexecuted > 0;
  EXPECT_TRUE(found) << "nobody misses " << GetParam().name;
  if (!sum->failures.empty()) {
    fmt::print("{}: seed {}, {}\n", GetParam().name, sum->failures[0].seed,
               to_string(sum->failures[0].outcome));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Guard, testing::ValuesIn(kGuardNames),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SimulationFailure, ABadSeedIsExplainedByTheFaultsItTakesAndALog) {
  SimulationOptions options;
  options.last_seed = 1000;
  options.guards.unack_on_adopt = false;
  options.max_failures = 1;
  const auto sum = simulate_seeds(options);
  ASSERT_TRUE(sum.ok());
  ASSERT_EQ(sum->failures.size(), 1U);
  const std::string& report = sum->failures[0].report;
  EXPECT_NE(report.find(fmt::format("seed {}:", sum->failures[0].seed)), std::string::npos);
  EXPECT_NE(report.find("faults that it takes:"), std::string::npos);
  EXPECT_NE(report.find(" us  worker "), std::string::npos) << report;
  // The same seed gives the same report.
  options.first_seed = options.last_seed = sum->failures[0].seed;
  EXPECT_EQ(simulate_seeds(options)->failures[0].report, report);
}

}  // namespace
}  // namespace sgactor::supervision
