#include "apps/sgactor/chaos_scenario.h"

#include "apps/sgactor/chaos_striker.h"

#include <gtest/gtest.h>

#include <set>

namespace sgactor::apps {
namespace {

using Kind = ChaosFault::Kind;

ChaosScenario draw(const std::string& head, ChaosLimits limits, uint64_t seed) {
  auto scenario = parse_scenario(head + "[random]\ncount = 200\n", "s.toml", limits, seed);
  EXPECT_TRUE(scenario.ok()) << scenario.status().to_string();
  return scenario.ok() ? *scenario : ChaosScenario{};
}

std::set<Kind> kinds_of(const ChaosScenario& scenario) {
  std::set<Kind> out;
  for (const ChaosFault& fault : scenario.faults) out.insert(fault.kind);
  return out;
}

TEST(ChaosScenario, DrawsEveryKindThatNeedsNothingElse) {
  const std::set<Kind> of_workers = {Kind::kKillWorker, Kind::kHangWorker, Kind::kSlowWorker,
                                     Kind::kKillActor};
  std::set<Kind> with_links = of_workers;
  with_links.insert({Kind::kDropFrame, Kind::kDelayFrame, Kind::kDuplicateFrame,
                     Kind::kCorruptFrame, Kind::kPartition});
  std::set<Kind> all = with_links;
  all.insert(Kind::kBitFlip);
  EXPECT_EQ(kinds_of(draw("workers = 1\n", {2, 100}, 1)), of_workers);
  EXPECT_EQ(kinds_of(draw("workers = 2\n", {2, 100}, 1)), with_links);
  EXPECT_EQ(kinds_of(draw("workers = 2\n", {2, 100, true}, 1)), all);
}

TEST(ChaosScenario, DrawsAreOfTheSeed) {
  const auto facts = [](uint64_t seed) {
    std::vector<std::tuple<Kind, int64_t, int64_t, int64_t>> out;
    for (const ChaosFault& f : draw("workers = 2\n", {4, 100}, seed).faults) {
      out.emplace_back(f.kind, f.rank, f.at_step, f.to_rank);
    }
    return out;
  };
  EXPECT_EQ(facts(3), facts(3));
  EXPECT_NE(facts(3), facts(4));
}

TEST(ChaosScenario, DrawnFaultsAreWithinTheRun) {
  for (const ChaosFault& f : draw("workers = 2\n", {4, 100}, 5).faults) {
    EXPECT_GE(f.at_step, 1);
    EXPECT_LE(f.at_step, 90);
    if (!is_of_link(f.kind)) continue;
    EXPECT_EQ(f.to_rank, -1) << "who hosts what is not known yet";
    const bool takes_time = f.kind == Kind::kDelayFrame || f.kind == Kind::kPartition;
    EXPECT_EQ(f.value > 0, takes_time);
  }
  EXPECT_EQ(draw("", {2, 1}, 5).faults[0].at_step, 1);
}

TEST(ChaosScenario, ALinkLeadsToAnotherWorker) {
  // As a pipeline of two stages with two replicas is dealt: not in runs of rank numbers.
  const std::string state = R"({"workers":[{"ranks":[0,2]},{"ranks":[]},{"ranks":[1,3]}]})";
  ChaosFault fault;
  fault.kind = Kind::kDropFrame;
  for (int64_t rank = 0; rank < 4; ++rank) {
    fault.rank = rank;
    EXPECT_EQ(ChaosStriker::other_end(state, fault), rank % 2 == 0 ? 1 : 0) << rank;
  }
  fault.rank = 0;
  fault.to_rank = 3;
  EXPECT_EQ(ChaosStriker::other_end(state, fault), 3);
  fault.to_rank = 2;
  EXPECT_EQ(ChaosStriker::other_end(state, fault), -1) << "on the same worker";
  fault.to_rank = -1;
  EXPECT_EQ(ChaosStriker::other_end(R"({"workers":[{"ranks":[0,1,2,3]}]})", fault), -1);
}

TEST(ChaosScenario, OfOneRankSaysWhatToGive) {
  const std::string fault = "[[fault]]\nkind = \"kill_worker\"\n";
  EXPECT_EQ(parse_scenario("workers = 2\n" + fault, "s.toml", {1, 100}, 1).status().message(),
            "s.toml:1: workers: the job has 1 logical rank, a worker hosts at least one; give "
            "--parallelism.data_parallel_degree=2");
  EXPECT_EQ(parse_scenario("workers = 3\n" + fault, "s.toml", {2, 100}, 1).status().message(),
            "s.toml:1: workers: expected a number from 1 to 2");
  const std::string link = "[[fault]]\nkind = \"drop_frame\"\n";
  const std::string message = parse_scenario(link, "s.toml", {1, 100}, 1).status().message();
  EXPECT_NE(message.find("needs two workers, and the job has 1 logical rank"), std::string::npos)
      << message;
}

ChaosLimits of_cluster() {
  ChaosLimits limits{4, 100};
  limits.simulated.emplace();
  limits.simulated->hosts = {"node0", "node1"};
  limits.simulated->idle_devices = 1;
  limits.simulated->seconds = 500;
  return limits;
}

TEST(ChaosScenario, SimulationsHaveKeysOfTheirOwn) {
  const auto s = parse_scenario(
      "workers = 2\nspares = 1\n[[fault]]\nkind = \"lose_host\"\nhost = \"node1\"\n"
      "at_step = 7\nat_part = 0.5\n[[fault]]\nkind = \"kill_worker\"\nworker = 3\n"
      "at_time_s = 120\n[[fault]]\nkind = \"kill_coordinator\"\nms = 30000\n"
      "[random]\nhost_mtbf_hours = 1000.5\n",
      "s.toml", of_cluster(), 1);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->workers, 4) << "one a logical rank, whatever real processes would have";
  EXPECT_EQ(s->nodes, 2);
  ASSERT_EQ(s->faults.size(), 3U);
  EXPECT_EQ(s->rates.host_hours, 1000.5);
  for (const ChaosFault& f : s->faults) {
    if (f.kind == Kind::kLoseHost) {
      EXPECT_EQ(f.host, 1);
      EXPECT_EQ(f.at_part, 0.5);
    } else if (f.kind == Kind::kKillWorker) {
      EXPECT_EQ(f.worker, 3);
      EXPECT_EQ(f.at_time_s, 120);
    } else {
      EXPECT_EQ(f.value, 30'000);
    }
  }
}

TEST(ChaosScenario, ChaosRefusesWhatOnlySimulationsDo) {
  const auto refused = [](const std::string& text) {
    return parse_scenario(text, "s.toml", {2, 100}, 1).status().message();
  };
  const std::string fault = "[[fault]]\nkind = \"kill_node\"\n";
  const std::string only = ": only for sgactor simulate --faults";
  EXPECT_EQ(refused(fault + "host = \"a\"\n"), "s.toml:3: host" + only);
  EXPECT_EQ(refused(fault + "at_part = 0.5\n"), "s.toml:3: at_part" + only);
  EXPECT_EQ(refused(fault + "at_time_s = 5\n"), "s.toml:3: at_time_s" + only);
  EXPECT_EQ(refused("[random]\ndevice_mtbf_steps = 5\n"), "s.toml:2: device_mtbf_steps" + only);
  EXPECT_NE(
      refused("[[fault]]\nkind = \"lose_host\"\n").find("s.toml:2: kind: \"lose_host\" is only"),
      std::string::npos);
  EXPECT_NE(
      refused("[[fault]]\nkind = \"kill_coordinator\"\nms = 5\n").find("s.toml:3: ms: not for"),
      std::string::npos);
  EXPECT_EQ(refused("[[fault]]\nkind = \"?\"\n").find("lose_host"), std::string::npos);
}

TEST(ChaosScenario, SimulationsNameWhatTheClusterLacks) {
  const auto refused = [](const std::string& text) {
    return parse_scenario(text, "s.toml", of_cluster(), 1).status().message();
  };
  const std::string fault = "[[fault]]\nkind = \"kill_node\"\n";
  EXPECT_EQ(refused("spares = 2\n" + fault),
            "s.toml:1: spares: 2, and the cluster has 1 devices beyond the job's 4 logical ranks");
  EXPECT_EQ(refused(fault + "host = \"node7\"\n"),
            "s.toml:3: host: the cluster has no such host; it has node0, node1");
  EXPECT_EQ(refused(fault + "rank = 4\n"), "s.toml:3: rank: expected a number from 0 to 3");
  EXPECT_EQ(refused(fault + "at_step = 100\n"),
            "s.toml:3: at_step: expected a number from 1 to 99");
  EXPECT_NE(
      refused(fault + "at_time_s = 500\n").find("s.toml:3: at_time_s: expected seconds from 0"),
      std::string::npos);
  EXPECT_NE(
      refused(fault + "at_time_s = 5\nat_step = 5\n").find("s.toml:3: at_time_s: in place of"),
      std::string::npos);
  EXPECT_NE(refused(fault + "at_step = 5\nat_part = 1.0\n").find("s.toml:4: at_part: "),
            std::string::npos);
  EXPECT_NE(refused("[random]\nhost_mtbf_hours = 0\n").find("s.toml:2: host_mtbf_hours: "),
            std::string::npos);
}

}  // namespace
}  // namespace sgactor::apps
