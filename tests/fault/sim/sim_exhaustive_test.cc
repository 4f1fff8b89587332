// A small mesh with every moment of it struck: two stages by two ranks, five workers on three
// nodes.
#include "supervision/chaos/sim_cluster.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::supervision {
namespace {

SimScenario small() {
  SimScenario s;
  s.seed = 1;
  s.mesh.pp = 2;
  s.mesh.dp = 2;
  s.mesh.micro_batches = 2;
  s.steps = 3;
  s.state_interval = 2;
  s.num_nodes = 3;
  s.num_workers = 5;
  return s;
}

SimFault at_event(SimFaultKind kind, int64_t event, uint64_t draw) {
  SimFault f;
  f.kind = kind;
  f.when = SimFault::When::kAtEvent;
  f.events = event;
  f.draw = draw;
  return f;
}

SimFault after(SimFaultKind kind, int64_t events, uint64_t draw) {
  SimFault f = at_event(kind, events, draw);
  f.when = SimFault::When::kAfterEvents;
  return f;
}

SimFault at_phase(SimFaultKind kind, SimPhase phase, bool at_subject, uint64_t draw) {
  SimFault f = at_event(kind, 0, draw);
  f.when = SimFault::When::kAtPhase;
  f.phase = phase;
  f.at_subject = at_subject;
  return f;
}

struct Tally {
  int64_t runs = 0;
  int64_t struck = 0;
  int64_t bad = 0;
  std::string first;
  SimResult run(const SimScenario& s) {
    const SimResult r = run_scenario(s);
    ++runs;
    struck += r.faults;
    if (r.outcome == SimOutcome::kEqual && r.survivors_reexecuted == 0) return r;
    if (++bad == 1) {
      first = fmt::format("{}\n{}: {}, {} redone by survivors", s.describe(), to_string(r.outcome),
                          r.message, r.survivors_reexecuted);
    }
    return r;
  }
};

TEST(Exhaustive, EveryWorkerKilledAtEveryEvent) {
  const int64_t events = run_scenario(small()).events;
  ASSERT_GT(events, 200);
  Tally tally;
  for (int64_t e = 0; e < events; ++e) {
    for (uint64_t worker = 0; worker < 5; ++worker) {
      SimScenario s = small();
      s.faults = {at_event(SimFaultKind::kKillWorker, e, worker)};
      tally.run(s);
    }
  }
  fmt::print("{} kills over {} events: {} bad\n", tally.struck, events, tally.bad);
  EXPECT_EQ(tally.bad, 0) << tally.first;
  EXPECT_GT(tally.struck, tally.runs * 9 / 10);
}

TEST(Exhaustive, TheCoordinatorKilledAtEveryEvent) {
  const int64_t events = run_scenario(small()).events;
  Tally tally;
  for (int64_t e = 0; e < events; ++e) {
    SimScenario s = small();
    s.faults = {at_event(SimFaultKind::kKillCoordinator, e, 0)};
    tally.run(s);
  }
  EXPECT_EQ(tally.bad, 0) << tally.first;
}

TEST(Exhaustive, EveryNodeKilledAtEveryEvent) {
  const int64_t events = run_scenario(small()).events;
  Tally tally;
  for (int64_t e = 0; e < events; ++e) {
    for (uint64_t node = 0; node < 3; ++node) {
      SimScenario s = small();
      s.faults = {at_event(SimFaultKind::kKillNode, e, node)};
      tally.run(s);
    }
  }
  EXPECT_EQ(tally.bad, 0) << tally.first;
  EXPECT_GT(tally.struck, tally.runs / 2);
}

TEST(Exhaustive, AGridOfDoubleKills) {
  const int64_t events = run_scenario(small()).events;
  Tally tally;
  for (int64_t e = 1; e < events; e += 9) {
    for (const int64_t gap : {0, 1, 5, 17, 40, 85}) {
      for (uint64_t pair = 0; pair < 5; ++pair) {
        SimScenario s = small();
        s.faults = {at_event(SimFaultKind::kKillWorker, e, pair),
                    after(pair == 4 ? SimFaultKind::kKillCoordinator : SimFaultKind::kKillWorker,
                          gap, pair + 1)};
        tally.run(s);
      }
    }
  }
  fmt::print("{} double faults: {} struck, {} bad\n", tally.runs, tally.struck, tally.bad);
  EXPECT_EQ(tally.bad, 0) << tally.first;
}

class SecondFault : public testing::TestWithParam<std::tuple<SimPhase, SimFaultKind>> {};

TEST_P(SecondFault, InThePhaseChangesNoBit) {
  const auto [phase, kind] = GetParam();
  Tally tally;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    for (const bool at_subject : {true, false}) {
      SimScenario s = small();
      s.seed = seed;
      if (seed % 2 == 0) s.network = {50, 500, 5, 4, 4};
      SimFault second = at_phase(kind, phase, at_subject, seed * 7);
      second.duration_us = seed % 3 == 0 ? 600'000 : 40'000;
      second.zombie = seed % 4 == 0;
      s.faults = {at_event(SimFaultKind::kKillWorker, 60 + static_cast<int64_t>(seed) * 11, seed),
                  second};
      tally.run(s);
    }
  }
  EXPECT_EQ(tally.bad, 0) << tally.first;
  EXPECT_GT(tally.struck, tally.runs) << "the second fault struck nobody";
}

std::string phase_name(const testing::TestParamInfo<SecondFault::ParamType>& info) {
  std::string name =
      fmt::format("{} {}", to_string(std::get<0>(info.param)), to_string(std::get<1>(info.param)));
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Phases, SecondFault,
    testing::Combine(testing::Values(SimPhase::kDecided, SimPhase::kDurable, SimPhase::kFetching,
                                     SimPhase::kRestored, SimPhase::kVoted, SimPhase::kVoting,
                                     SimPhase::kCommitting),
                     testing::Values(SimFaultKind::kKillWorker, SimFaultKind::kKillNode,
                                     SimFaultKind::kHangWorker, SimFaultKind::kPartitionWorker,
                                     SimFaultKind::kKillCoordinator, SimFaultKind::kDiskFull)),
    phase_name);

TEST(Named, TheSpareDiesWhileAdopting) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimScenario s = small();
    s.seed = seed;
    s.num_workers = 6;
    s.faults = {at_event(SimFaultKind::kKillWorker, 150, 0),
                at_phase(SimFaultKind::kKillWorker, SimPhase::kFetching, true, 0)};
    const SimResult r = run_scenario(s);
    EXPECT_EQ(r.outcome, SimOutcome::kEqual) << r.message;
    EXPECT_EQ(r.faults, 2);
    EXPECT_GE(r.adoptions, 2);
  }
}

TEST(Named, TheCoordinatorDiesBetweenJournalAndBroadcast) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimScenario s = small();
    s.seed = seed;
    s.faults = {at_phase(SimFaultKind::kKillCoordinator, SimPhase::kDurable, false, 0),
                at_event(SimFaultKind::kKillWorker, 10, seed),
                at_phase(SimFaultKind::kKillCoordinator, SimPhase::kDurable, false, 0)};
    s.faults[1].when = SimFault::When::kAfterEvents;
    const SimResult r = run_scenario(s);
    EXPECT_EQ(r.outcome, SimOutcome::kEqual) << r.message;
    EXPECT_EQ(r.coordinator_restarts, 2);
  }
}

TEST(Named, AWorkerAndItsMirrorsHostDieInTurn) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimScenario s = small();
    s.seed = seed;
    s.num_nodes = 4;
    s.num_workers = 8;
    s.faults = {at_event(SimFaultKind::kKillNode, 120, 1),
                at_phase(SimFaultKind::kKillWorker, SimPhase::kVoted, false, 0)};
    const SimResult r = run_scenario(s);
    EXPECT_EQ(r.outcome, SimOutcome::kEqual) << r.message;
  }
}

TEST(Named, WithoutASpareItShrinksAndGrowsAgainWithoutWorkDoneTwice) {
  int64_t moved_back = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimScenario s = small();
    s.seed = seed;
    s.num_workers = 4;
    s.steps = 200;  // so long that the fresh worker comes in time
    s.faults = {at_event(SimFaultKind::kKillWorker, 200, seed)};
    const SimResult r = run_scenario(s);
    EXPECT_EQ(r.outcome, SimOutcome::kEqual) << r.message;
    EXPECT_EQ(r.survivors_reexecuted, 0);
    moved_back += r.adoptions >= 2 ? 1 : 0;
  }
  EXPECT_GT(moved_back, 10);
}

}  // namespace
}  // namespace sgactor::supervision
