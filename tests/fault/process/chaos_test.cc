#include "tests/fault/process/fault_program.h"

namespace sgactor::tests {
namespace {

class Chaos : public FaultTest {
 protected:
  [[nodiscard]] std::vector<std::string> chaos(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"chaos", "job.toml", "scenario.toml", "--run-dir",
                                     path("chaos")};
    args.insert(args.end(), ranks_.begin(), ranks_.end());
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_F(Chaos, AgreesAndSaysWhatHappened) {
  write("scenario.toml",
        "workers = 2\nspares = 1\n[[fault]]\nkind = \"kill_worker\"\nrank = 1\nat_step = 12\n"
        "[[fault]]\nkind = \"hang_worker\"\nworker = 0\nat_step = 30\n");
  const ProgramResult result = run(chaos({"--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const size_t at = result.out.rfind("\n{");
  const nlohmann::json report =
      nlohmann::json::parse(result.out.substr(at == std::string::npos ? 0 : at));
  EXPECT_EQ(report["divergences"], 0);
  EXPECT_EQ(report["steps"], kSteps);
  EXPECT_EQ(report["faults"].size(), 2U);
  EXPECT_EQ(report["recoveries"].size(), 2U);
  EXPECT_GT(report["recovery_ms"]["median"], 0);
  EXPECT_TRUE(report.contains("survivors_reexecuted"));
}

TEST_F(Chaos, TheCoordinatorComesBackAsOftenAsItIsKilled) {
  write("scenario.toml",
        "workers = 2\nspares = 2\n[[fault]]\nkind = \"kill_coordinator\"\nat_step = 6\n"
        "[[fault]]\nkind = \"kill_coordinator\"\nphase = \"journalled\"\nat_step = 14\n"
        "[[fault]]\nkind = \"kill_worker\"\nworker = 1\nat_step = 24\n"
        "[[fault]]\nkind = \"kill_worker\"\nspare = true\nphase = \"restore\"\n"
        "at_step = \"recovery\"\n");
  const ProgramResult result = run(chaos({"--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const size_t at = result.out.rfind("\n{");
  const nlohmann::json report =
      nlohmann::json::parse(result.out.substr(at == std::string::npos ? 0 : at));
  EXPECT_EQ(report["divergences"], 0);
  EXPECT_EQ(report["faults"].size(), 4U);
  EXPECT_EQ(report["recoveries"].size(), 4U);
  EXPECT_EQ(report["survivors_reexecuted"], 0);
}

TEST_F(Chaos, WhatTheScenarioLeavesOpenComesFromTheSeed) {
  write("scenario.toml", "workers = 2\nspares = 1\n[random]\ncount = 2\n");
  const ProgramResult result = run(chaos({"--seed", "7"}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("divergences  0 in 60 steps"), std::string::npos) << result.out;
}

TEST_F(Chaos, AFaultThatNeverStrikesIsNamed) {
  // Nothing recovers from slowness, so the second fault waits in vain.
  write("scenario.toml",
        "workers = 2\n[[fault]]\nkind = \"slow_worker\"\nrank = 0\nat_step = 5\n"
        "[[fault]]\nkind = \"kill_worker\"\nrank = 1\nat_step = \"recovery\"\n");
  const ProgramResult result = run(chaos({}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("fault 2 (kill_worker) never struck: no recovery from the fault before "
                            "it was seen to begin"),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.out.find("divergences  0"), std::string::npos) << result.out;
}

TEST_F(Chaos, WhatDoesNotExistIsRefusedBeforeTraining) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[[fault]]\nkind = \"kill_planet\"\n", "scenario.toml:2: kind: expected"},
      {"[[fault]]\nkind = \"kill_worker\"\nrank = 2\n", "scenario.toml:3: rank: expected a number"},
      {"[[fault]]\nkind = \"kill_worker\"\nworker = 2\n", "scenario.toml:3: worker: expected"},
      {"[[fault]]\nkind = \"kill_worker\"\nat_step = 60\n", "scenario.toml:3: at_step: expected"},
      {"[[fault]]\nkind = \"kill_worker\"\nworker = 0\nrank = 0\n", "worker or rank, not both"},
      {"workers = 3\n", "scenario.toml:1: workers: expected a number from 1 to 2"},
      {"wrokers = 1\n", "no key \"wrokers\" here"},
      {"[[fault]]\nat_step = \"recovery\"\nkind = \"kill_worker\"\n", "no fault comes before"},
      {"[[fault]]\nkind = \"kill_worker\"\nphase = \"restore\"\n", "phase: of the recovery"},
      {"[[fault]]\nkind = \"kill_worker\"\nphase = \"lunch\"\n", "phase: expected one of"},
      {"[[fault]]\nkind = \"hang_worker\"\nspare = true\n", "spare: true or false"},
      {"workers = 2\n", "no fault"},
      {"workers = \n", "scenario.toml:1: "}};
  for (const auto& [text, message] : cases) {
    write("scenario.toml", text);
    expect_refused(chaos({}), {message});
  }
  std::filesystem::remove(path("scenario.toml"));
  expect_refused(chaos({}), {"scenario.toml: there is no such file"});
}

}  // namespace
}  // namespace sgactor::tests
