#include "tests/fault/process/scenario_program.h"

namespace sgactor::tests {
namespace {

/// Faults of the links between workers, and of what a device computes: the scenarios that ship.
class Scenario : public ScenarioTest {
 protected:
  void SetUp() override {
    ScenarioTest::SetUp();
    seed_ = "5";
  }
  /// The link was made again, and nobody lost what he had.
  void expect_repaired(const nlohmann::json& report, const std::string& why) {
    ASSERT_EQ(report["recoveries"].size(), 1U) << report.dump(1) << log_;
    const nlohmann::json& line = report["recoveries"][0];
    EXPECT_EQ(line["fault"], "partition");
    EXPECT_EQ(line["ranks_moved"], 0);
    EXPECT_EQ(line["survivors_reexecuted"], 0);
    EXPECT_NE((log_ + line.dump()).find(why), std::string::npos) << log_ << line;
  }
  /// What audit.jsonl has of the one bit that was wrong. Every step was verified in the end.
  nlohmann::json wrong_bits_of(const std::vector<std::string>& more) {
    const nlohmann::json report = report_of("bit-flip", more);
    EXPECT_EQ(report["recoveries"].size(), 1U) << report.dump(1) << log_;
    std::vector<nlohmann::json> found;
    std::istringstream audit(read("chaos/disturbed/audit.jsonl"));
    int64_t verified = 0;
    for (std::string text; std::getline(audit, text);) {
      const nlohmann::json entry = nlohmann::json::parse(text);
      if (entry["what"] == "wrong bits") found.push_back(entry);
      verified += entry["what"] == "verified" ? 1 : 0;
    }
    EXPECT_EQ(verified, kSteps) << "every step was verified in the end";
    if (found.size() != 1 || report["recoveries"].size() != 1) {
      ADD_FAILURE() << found.size() << " were wrong\n" << log_;
      return nlohmann::json::object();
    }
    const nlohmann::json& line = report["recoveries"][0];
    EXPECT_EQ(line["fault"], "wrong bits");
    EXPECT_EQ(found[0]["rank"], found[0]["liar"]) << found[0];
    EXPECT_NE(found[0]["hash"], found[0]["checker_hash"]);
    EXPECT_EQ(found[0]["umpire_hash"], found[0]["checker_hash"]);
    EXPECT_EQ(found[0]["step"].get<int64_t>(), line["step"].get<int64_t>() + 1);
    return found[0];
  }
};

TEST_F(Scenario, ALostFrameIsMissedAndSentAgain) {
  expect_repaired(report_of("drop-frame"), "came instead of frame");
}

TEST_F(Scenario, AFrameWithAnotherBitIsSeenAndSentAgain) {
  expect_repaired(report_of("corrupt-frame"), "wrong checksum of frame");
}

TEST_F(Scenario, ALateFrameAndOneThatComesTwiceAreNoFault) {
  EXPECT_EQ(report_of("delay-frame")["recoveries"].size(), 0U) << log_;
  std::filesystem::remove_all(path("chaos"));
  EXPECT_EQ(report_of("duplicate-frame")["recoveries"].size(), 0U) << log_;
}

TEST_F(Scenario, WorkersThatDoNotReachEachOtherForAWhileGoOn) {
  const nlohmann::json report = report_of("partition");
  ASSERT_GE(report["recoveries"].size(), 1U) << report.dump(1) << log_;
  EXPECT_EQ(report["recoveries"][0]["fault"], "partition");
}

TEST_F(Scenario, ABitThatADeviceGetsWrongIsFoundBeforeTheStepCommits) {
  const nlohmann::json found = wrong_bits_of({});
  EXPECT_EQ(found["liar"], 1) << found;
  EXPECT_EQ(found["checker"], 0);
  EXPECT_NE(log_.find("rank 1 was wrong"), std::string::npos) << log_;
}

TEST_F(Scenario, AWrongBitIsFoundWhereParametersAreGathered) {
  for (const char* stage : {"1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const nlohmann::json found = wrong_bits_of({std::string("--parallelism.zero_stage=") + stage});
    EXPECT_EQ(found["liar"], 1) << found;
    std::filesystem::remove_all(path("chaos"));
  }
}

TEST_F(Scenario, AWrongBitIsItsRanksAloneThoughItsReplicaReadsIt) {
  // What rank 1's worker sends is wrong, and so is all that others of its replica make of it.
  for (const char* axis : {"tensor", "pipeline"}) {
    SCOPED_TRACE(axis);
    wrong_bits_of({std::string("--parallelism.") + axis + "_parallel_degree=2"});
    std::filesystem::remove_all(path("chaos"));
  }
}

TEST_F(Scenario, WhoeverTakesOverIsCheckedAndChecks) {
  // What was heard goes between replicas before each vote: a fence may come in the middle of it.
  for (const char* axis : {"tensor", "pipeline"}) {
    SCOPED_TRACE(axis);
    const nlohmann::json report =
        report_of("kill-one", {std::string("--parallelism.") + axis + "_parallel_degree=2",
                               "--resilience.verify_interval=1", "--training.steps=16"});
    ASSERT_EQ(report["recoveries"].size(), 1U) << report.dump(1) << log_;
    EXPECT_EQ(report["recoveries"][0]["survivors_reexecuted"], 0) << report.dump(1);
    EXPECT_EQ(log_.find("a new attempt"), std::string::npos) << log_;
    const std::string audit = read("chaos/disturbed/audit.jsonl");
    EXPECT_EQ(audit.find("wrong bits"), std::string::npos) << audit;
    std::filesystem::remove_all(path("chaos"));
  }
}

TEST_F(Scenario, WhatDoesNotExistIsRefusedBeforeTraining) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[[fault]]\nkind = \"drop_frame\"\nto_rank = 7\n", "scenario.toml:3: to_rank: expected"},
      {"[[fault]]\nkind = \"drop_frame\"\nrank = 1\nto_rank = 1\n", "no link to itself"},
      {"[[fault]]\nkind = \"drop_frame\"\nworker = 1\n", "give rank, not worker"},
      {"[[fault]]\nkind = \"drop_frame\"\nms = 3\n", "scenario.toml:3: ms: not for kind"},
      {"[[fault]]\nkind = \"kill_worker\"\nto_rank = 1\n", "scenario.toml:3: to_rank: not for"},
      {"[[fault]]\nkind = \"partition\"\nms = 0\n", "scenario.toml:3: ms: expected a number"},
      {"workers = 1\n[[fault]]\nkind = \"partition\"\n", "a link needs two workers"}};
  for (const auto& [text, message] : cases) {
    write("scenario.toml", text);
    expect_refused({"chaos", "job.toml", "scenario.toml", "--run-dir", path("chaos"),
                    "--parallelism.data_parallel_degree=2", "--data.validation_fraction=0"},
                   {message});
  }
}

TEST_F(Scenario, RunsWithoutReplicasCannotVerify) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--parallelism.data_parallel_degree=1", "needs two data-parallel ranks"},
      {"--resilience.mode=off", "needs resilience.mode"}};
  for (const auto& [key, message] : cases) {
    expect_refused(train("run", {"--workers", "2", "--resilience.verify_interval=5", key}),
                   {"resilience.verify_interval", message});
  }
}

}  // namespace
}  // namespace sgactor::tests
