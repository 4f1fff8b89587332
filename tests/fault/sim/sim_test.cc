// Whole clusters in one process: coordinator, nodes, workers as actors in virtual time, over a
// network and a disk that misbehave, under random schedules of faults. Every state of every rank
// must be that of the run without faults.
#include "supervision/chaos/simulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

namespace sgactor::supervision {
namespace {

std::string reports(const SimulationSummary& sum) {
  std::string out;
  for (const SimulationFailure& f : sum.failures) out += f.report + "\n";
  return out;
}

/// Seeds of the random schedules: more of them by SGA_SIM_SEEDS=first..last.
SimulationOptions seeds_from_environment(uint64_t first, uint64_t last) {
  SimulationOptions options;
  options.first_seed = first;
  options.last_seed = last;
  const char* range = std::getenv("SGA_SIM_SEEDS");
  unsigned long long a = 0, b = 0;
  if (range != nullptr && std::sscanf(range, "%llu..%llu", &a, &b) == 2) {
    options.first_seed = a;
    options.last_seed = b;
  }
  return options;
}

TEST(Simulation, WithoutFaultsTheStateIsTheOracles) {
  SimulationOptions options;
  options.last_seed = 60;
  options.max_faults = 0;
  const auto sum = simulate_seeds(options);
  ASSERT_TRUE(sum.ok()) << sum.status().to_string();
  EXPECT_EQ(sum->divergences + sum->stuck + sum->unsurvivable, 0) << reports(*sum);
  EXPECT_EQ(sum->faults, 0);
  EXPECT_EQ(sum->survivors_reexecuted, 0);
}

TEST(Simulation, RandomFaultsChangeNoBit) {
  const auto sum = simulate_seeds(seeds_from_environment(1, 1000));
  ASSERT_TRUE(sum.ok()) << sum.status().to_string();
  fmt::print(
      "{} seeds: {} divergences, {} stuck, {} unsurvivable, {} faults, {} recoveries, {} "
      "adoptions, "
      "{} coordinator restarts, {} redone, {} redone by survivors, {} events, {:.1f} s\n",
      sum->seeds, sum->divergences, sum->stuck, sum->unsurvivable, sum->faults, sum->recoveries,
      sum->adoptions, sum->coordinator_restarts, sum->reexecuted, sum->survivors_reexecuted,
      sum->events, sum->wall_seconds);
  EXPECT_EQ(sum->divergences, 0) << reports(*sum);
  EXPECT_EQ(sum->stuck, 0) << reports(*sum);
  EXPECT_EQ(sum->survivors_reexecuted, 0);
  EXPECT_GT(sum->faults, sum->seeds);
  EXPECT_GT(sum->adoptions, sum->seeds / 4);
  EXPECT_LT(sum->unsurvivable, sum->seeds / 50 + 1);
}

TEST(Simulation, ASeedReplaysExactlyAfterOthers) {
  std::map<uint64_t, SimResult> first;
  for (uint64_t seed = 2001; seed <= 2040; ++seed)
    first[seed] = run_scenario(scenario_of(seed, 5, 64));
  std::set<uint64_t> logs;
  for (uint64_t seed = 2040; seed >= 2001; --seed) {
    const SimResult again = run_scenario(scenario_of(seed, 5, 64));
    EXPECT_EQ(again.event_hash, first[seed].event_hash) << seed;
    EXPECT_EQ(again.events, first[seed].events) << seed;
    EXPECT_EQ(again.state_hash, first[seed].state_hash) << seed;
    logs.insert(again.event_hash);
  }
  EXPECT_EQ(logs.size(), 40U);
}

TEST(Simulation, LargeMeshes) {
  int32_t found = 0;
  for (uint64_t seed = 1; found < 3 && seed < 5000; ++seed) {
    const SimScenario scenario = scenario_of(seed, 5, 64);
    if (scenario.mesh.num_ranks() < 48) continue;
    ++found;
    const SimResult result = run_scenario(scenario);
    EXPECT_EQ(result.outcome, SimOutcome::kEqual) << scenario.describe() << result.message;
    EXPECT_EQ(result.survivors_reexecuted, 0);
  }
  EXPECT_EQ(found, 3);
}

TEST(Simulation, RangesThatAreNoneAreRefused) {
  SimulationOptions options;
  options.first_seed = 5;
  options.last_seed = 4;
  EXPECT_EQ(simulate_seeds(options).status().code(), Code::kInvalidArgument);
  options.last_seed = 5;
  options.max_faults = 99;
  EXPECT_EQ(simulate_seeds(options).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sgactor::supervision
