#include "tests/fault/process/fault_program.h"

namespace sgactor::tests {
namespace {

/// Two nodes on loopback, a worker each.
class Drain : public FaultTest {
 protected:
  void SetUp() override {
    FaultTest::SetUp();
    ranks_.push_back("--checkpoint.interval=0");  // 300 steps are not to wait for the disk
  }
  static constexpr const char* kSteps = "--training.steps=400";

  /// Starts both; the second one's process id.
  void begin() {
    run_ = start(train("run", {"--workers", "2", "--nodes", "2", kSteps}));
    ASSERT_TRUE(wait_for([&] { return exists("run/control/token"); }));
    node_ = start({"node", "--token", path("run/control/token"), "--devices", "cpu:1"});
    ASSERT_TRUE(is_past("run", 10)) << read(".err");
  }
  [[nodiscard]] size_t workers_on(int node) const {
    size_t out = 0;
    const nlohmann::json s = state("run");
    for (const nlohmann::json& worker : s["workers"]) out += worker["node"] == node ? 1 : 0;
    return out;
  }
  int run_ = 0;
  int node_ = 0;
};

TEST_F(Drain, RanksLeaveTheHostAndItsProcessesEnd) {
  const std::vector<std::string> quiet = {kSteps};
  const ProgramResult undisturbed = run(train("quiet", quiet));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  begin();
  ASSERT_EQ(workers_on(node_), 1U) << read("run/control/state.json");
  const ProgramResult result = run({"ctl", path("run"), "drain", std::to_string(node_)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("is drained; 1 workers are left, 1 of them with ranks"),
            std::string::npos)
      << result.out;
  EXPECT_EQ(workers_on(node_), 0U);
  EXPECT_EQ(wait(node_).exit_code, 0) << "the node ends in order";
  expect_whole(run_, "run", loss_bits("quiet"));
  ASSERT_EQ(recoveries("run").size(), 1U);
  EXPECT_EQ(recoveries("run")[0]["fault"], "resize");
}

TEST_F(Drain, WhatCannotBeLeftIsRefused) {
  begin();
  const nlohmann::json s = state("run");
  const std::string host = s["workers"][0]["host"];
  const ProgramResult all = run({"ctl", path("run"), "drain", host});
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_NE(all.err.find("no worker would be left elsewhere"), std::string::npos) << all.err;
  const ProgramResult nobody = run({"ctl", path("run"), "drain", "nowhere"});
  EXPECT_EQ(nobody.exit_code, 2);
  EXPECT_NE(nobody.err.find("no worker of the run is there"), std::string::npos) << nobody.err;
  EXPECT_EQ(run({"ctl", path("run"), "drain"}).exit_code, 2);
  kill(run_, SIGINT);
  EXPECT_EQ(wait(run_).exit_code, 130);
  EXPECT_EQ(wait(node_).exit_code, 0);
}

}  // namespace
}  // namespace sgactor::tests
