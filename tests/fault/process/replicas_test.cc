#include "tests/fault/process/scenario_program.h"

namespace sgactor::tests {
namespace {

/// `resilience.mode = "replicas"`: no copies and no update inputs while nothing happens.
class ReplicaLoss : public FaultTest {
 protected:
  void SetUp() override {
    FaultTest::SetUp();
    ranks_.push_back("--checkpoint.interval=0");
  }
  [[nodiscard]] std::vector<std::string> with(std::vector<std::string> more) const {
    more.push_back("--resilience.mode=replicas");
    return train("run", more);
  }
  /// What lies in the run's directory in memory, by name.
  [[nodiscard]] static std::set<std::string> in_memory(int pid) {
    std::set<std::string> out;
    std::error_code error;
    const std::string path = "/dev/shm/sgactor-" + std::to_string(pid) + "-0";
    EXPECT_TRUE(std::filesystem::is_directory(path));
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      out.insert(entry.path().filename().string());
    }
    return out;
  }
};

TEST_F(ReplicaLoss, ASurvivorWritesWhatTheSpareLoads) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(with({"--workers", "2", "--spares", "1"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  EXPECT_TRUE(in_memory(pid).empty());
  kill(active("run").front(), SIGKILL);
  ASSERT_TRUE(wait_for([&] { return recoveries("run").size() == 1; })) << read(".err");
  // The record is written when a new step is done: the copy has gone before.
  EXPECT_TRUE(in_memory(pid).empty());
  expect_whole(pid, "run", bits);
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 1U) << read(".err");
  EXPECT_EQ(lines[0]["fault"], "worker exit");
  EXPECT_EQ(lines[0]["steps_again"], 0);
  EXPECT_EQ(lines[0]["survivors_reexecuted"], 0);
  EXPECT_EQ(lines[0]["ranks_moved"], 1);
}

TEST_F(ReplicaLoss, WhereNobodyTakesOverTheOthersCarryOnFromTheSurvivorsState) {
  const std::vector<std::string> bits = undisturbed();
  const Injections on;
  const int pid = start(with({"--workers", "2"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const nlohmann::json workers = state("run").at("workers");
  // XID 54 wants a repair: no worker is started on that device again.
  request("run",
          nlohmann::json{{"inject", "xid"}, {"worker", workers[0]["index"]}, {"value", 54}}.dump());
  expect_whole(pid, "run", bits);
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 1U) << read(".err");
  EXPECT_EQ(lines[0]["workers"], 1);
  EXPECT_EQ(lines[0]["steps_again"], 0) << "the committed step was nowhere else";
  EXPECT_NE(read(".err").find("cannot be survived"), std::string::npos) << read(".err");
}

TEST_F(ReplicaLoss, AnotherNumberOfWorkers) {
  const std::vector<std::string> more = {"--training.steps=400"};
  const ProgramResult quiet = run(train("quiet", more));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  const int pid = start(with({"--workers", "2", "--training.steps=400"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  request("run", R"({"resize": 1})");
  ASSERT_TRUE(wait_for([&] { return active("run").size() == 1; })) << read(".err");
  request("run", R"({"resize": 2})");
  ASSERT_TRUE(wait_for([&] { return active("run").size() == 2; })) << read(".err");
  expect_whole(pid, "run", loss_bits("quiet"));
  for (const nlohmann::json& line : recoveries("run")) EXPECT_EQ(line["steps_again"], 0) << line;
}

TEST_F(ReplicaLoss, WithoutAReplicaTheRunEndsAndSaysWhatIsLeft) {
  ranks_.back() = "--checkpoint.interval=100";
  const int pid = start(with({"--workers", "2", "--spares", "1", "--training.steps=100000"}));
  // Not behind a step that is on disk: from there the run would go on.
  ASSERT_TRUE(wait_for([&] { return exists("run/ckpt/step-00000100/COMMIT"); })) << read(".err");
  ASSERT_TRUE(is_past("run", 102));
  for (const int worker : active("run")) kill(worker, SIGKILL);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("signal 9"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("no data-parallel replica is left of ranks 0, 1"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("train --resume goes on from " + path("run") + "/ckpt/step-"),
            std::string::npos)
      << result.err;
}

/// Loss bits, final state and samples beside those of an undisturbed run.
class ReplicaScenario : public ScenarioTest {
 protected:
  [[nodiscard]] nlohmann::json replicas(const std::string& scenario,
                                        std::vector<std::string> more = {}) {
    more.push_back("--resilience.mode=replicas");
    return report_of(scenario, more);
  }
};

TEST_F(ReplicaScenario, ALostWorkerCostsNoBitOfTheState) {
  const nlohmann::json report = replicas("kill-one");
  ASSERT_EQ(report["recoveries"].size(), 1U) << log_;
  EXPECT_EQ(report["survivors_reexecuted"], 0);
}

TEST_F(ReplicaScenario, WhoTakesOverDiesAsItLoads) {
  const nlohmann::json report = replicas("kill-adopter");
  EXPECT_EQ(report["survivors_reexecuted"], 0);
}

TEST_F(ReplicaScenario, TheCoordinatorComesBack) {
  const nlohmann::json report = replicas("kill-coordinator");
  EXPECT_EQ(report["survivors_reexecuted"], 0);
}

TEST_F(ReplicaScenario, EachStandsForTheOther) {
  const nlohmann::json report = replicas("each-replica");
  ASSERT_EQ(report["recoveries"].size(), 3U) << log_;
  EXPECT_EQ(report["recoveries"][1]["fault"], "actor failure");
  EXPECT_EQ(report["survivors_reexecuted"], 0);
}

}  // namespace
}  // namespace sgactor::tests
