#include "tests/fault/process/scenario_program.h"

namespace sgactor::tests {
namespace {

/// The scenarios that ship, one a kind of fault.
using ChaosKinds = ScenarioTest;

TEST_F(ChaosKinds, ASlowWorkerIsLeftInPeace) {
  // Long enough for all bursts.
  const nlohmann::json report = report_of("slow-worker", {"--training.steps=300"});
  EXPECT_EQ(report["faults"][0]["kind"], "slow_worker");
  EXPECT_EQ(report["recoveries"].size(), 0U) << report.dump();
}

TEST_F(ChaosKinds, TheWorkersOfAnotherNodeCarryOn) {
  const nlohmann::json report = report_of("kill-node");
  ASSERT_GE(report["recoveries"].size(), 1U);
  EXPECT_EQ(report["recoveries"][0]["workers"], 1);
}

TEST_F(ChaosKinds, AnActorThatFailsCostsNoBit) {
  const nlohmann::json report = report_of("kill-actor");
  ASSERT_EQ(report["recoveries"].size(), 1U);
  EXPECT_EQ(report["recoveries"][0]["fault"], "actor failure");
  EXPECT_NE(report["recoveries"][0].dump().find("injected"), std::string::npos);
  // Its process takes the rank over itself; nobody else begins again.
  EXPECT_EQ(report["survivors_reexecuted"], 0);
  EXPECT_EQ(report["recoveries"][0]["steps_again"], 0);
  EXPECT_EQ(report["recoveries"][0]["ranks_moved"], 0);
}

TEST_F(ChaosKinds, FaultsAtMessagesCostNoBit) {
  const nlohmann::json report = report_of("at-message", {"--training.steps=60"});
  // An actor and a worker, each in the middle of a step; the link breaks, or is made again.
  ASSERT_EQ(report["recoveries"].size(), 3U) << report.dump();
  EXPECT_EQ(report["recoveries"][0]["fault"], "actor failure");
  EXPECT_EQ(report["recoveries"][0]["step"], 10);
  EXPECT_EQ(report["recoveries"][2]["fault"], "worker exit");
  EXPECT_EQ(report["recoveries"][2]["step"], 25);
  EXPECT_EQ(report["survivors_reexecuted"], 0);
}

TEST_F(ChaosKinds, AFullDiskIsSaidAndSurvived) {
  // Checkpoints on disk while there are steps left, so that the fault meets a write.
  const nlohmann::json report = report_of("disk-full", {"--checkpoint.interval=10"});
  EXPECT_NE((log_ + report.dump()).find("No space left on device"), std::string::npos)
      << log_ << report.dump();
}

TEST_F(ChaosKinds, ATornWriteIsNeverTakenForACheckpoint) {
  const nlohmann::json report = report_of("torn-write", {"--checkpoint.interval=10"});
  ASSERT_EQ(report["recoveries"].size(), 1U);
  EXPECT_EQ(report["recoveries"][0]["fault"], "worker exit");
}

TEST_F(ChaosKinds, AnXidIsAnsweredAsTheTableSays) {
  const nlohmann::json reset = report_of("xid-reset");
  ASSERT_EQ(reset["recoveries"].size(), 1U) << reset.dump() << log_;
  EXPECT_EQ(reset["recoveries"][0]["fault"], "device fault");
  EXPECT_NE(reset["recoveries"][0]["culprit"].get<std::string>().find(
                "XID 95 (UNCONTAINED_ERROR): reset device"),
            std::string::npos)
      << reset.dump();
  std::filesystem::remove_all(path("chaos"));
  const nlohmann::json ignored = report_of("xid-ignore");
  EXPECT_EQ(ignored["recoveries"].size(), 0U) << ignored.dump();
}

TEST_F(ChaosKinds, ADeviceThatFallsOffTheBusDrainsItsHost) {
  const nlohmann::json report = report_of("xid-drain", {"--training.steps=300"});
  ASSERT_EQ(report["recoveries"].size(), 1U) << report.dump();
  EXPECT_EQ(report["recoveries"][0]["fault"], "resize");
  EXPECT_EQ(report["recoveries"][0]["workers"], 1);
}

TEST_F(ChaosKinds, WhatDoesNotExistIsRefusedBeforeTraining) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[[fault]]\nkind = \"kill_node\"\n", "1 of 1 nodes are killed; one must be left"},
      {"[[fault]]\nkind = \"xid\"\n", "scenario.toml:1: xid: missing"},
      {"[[fault]]\nkind = \"xid\"\nxid = -3\n", "scenario.toml:3: xid: expected a number"},
      {"[[fault]]\nkind = \"kill_actor\"\nxid = 79\n", "scenario.toml:1: xid: only for kind"},
      {"[[fault]]\nkind = \"xid\"\nxid = 79\nat_message = 3\n",
       "scenario.toml:4: at_message: not for kind \"xid\""},
      {"[[fault]]\nkind = \"kill_actor\"\nat_step = 5\nat_message = 3\n",
       "scenario.toml:4: at_message: only with at_step up to 3, 3 before the last step"},
      {"nodes = 0\n", "scenario.toml:1: nodes: expected a number from 1"}};
  for (const auto& [text, message] : cases) {
    write("scenario.toml", text);
    expect_refused({"chaos", "job.toml", "scenario.toml", "--run-dir", path("chaos")}, {message});
  }
}

TEST_F(ChaosKinds, ARunThatWasNotStartedForItTakesNoInjectedFault) {
  const int pid = start(train("run", {"--workers", "2", "--spares", "1", "--training.steps=400"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  request("run", "{\"inject\":\"kill_actor\",\"worker\":0,\"value\":0}\n");
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("takes no injected faults"), std::string::npos) << result.err;
  EXPECT_TRUE(recoveries("run").empty());
}

}  // namespace
}  // namespace sgactor::tests
