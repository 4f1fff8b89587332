// Whole clusters in one process: coordinator, nodes, workers as actors in virtual time, over a
// network and a disk that misbehave, under random schedules of faults. Every state of every rank
// must be that of the run without faults.
#include "supervision/chaos/simulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

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

}  // namespace
}  // namespace sgactor::supervision
