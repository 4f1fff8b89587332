#pragma once
#include "tests/fault/process/fault_program.h"

#include <string>
#include <vector>

namespace sgactor::tests {

/// Runs of `sgactor chaos` over the scenarios that ship. SGA_SCENARIOS names their directory.
class ScenarioTest : public FaultTest {
 protected:
  void SetUp() override {
    FaultTest::SetUp();
    ranks_.push_back("--checkpoint.interval=0");  // 300 steps are not to wait for the disk
  }
  /// The report of `sgactor chaos` over a scenario of apps/examples/chaos, which must agree.
  nlohmann::json report_of(const std::string& scenario, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {
        "chaos",     "job.toml",    std::string(SGA_SCENARIOS) + "/" + scenario + ".toml",
        "--run-dir", path("chaos"), "--seed",
        seed_,       "--json"};
    args.insert(args.end(), ranks_.begin(), ranks_.end());
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult result = run(args);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    log_ = result.err;
    const size_t at = result.out.rfind("\n{");
    const nlohmann::json out = nlohmann::json::parse(
        result.out.substr(at == std::string::npos ? 0 : at), nullptr, /*allow_exceptions=*/false);
    if (!out.is_object()) return nlohmann::json::object();
    EXPECT_EQ(out["divergences"], 0);
    EXPECT_EQ(out["faults"].size(), out["faults_planned"]);
    return out;
  }

  std::string seed_ = "3";
  std::string log_;
};

}  // namespace sgactor::tests
