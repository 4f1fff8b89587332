#include "tests/fault/process/fault_program.h"

namespace sgactor::tests {
namespace {

/// A second fault in the middle of a recovery, in each of its phases.
class RecoveryPhase : public FaultTest {
 protected:
  void SetUp() override {
    FaultTest::SetUp();
    ranks_.push_back("--checkpoint.interval=0");
  }
  /// Worker 0 is killed; when its recovery enters `phase` the spare that takes over, or the
  /// survivor, is killed as well.
  void strike_twice(const std::string& phase, bool spare) {
    std::filesystem::remove_all(path("run"));
    const Injections on;
    const int pid = start(train("run", {"--workers", "2", "--spares", "2"}));
    ASSERT_TRUE(is_past("run", 10)) << read(".err");
    const nlohmann::json workers = state("run").at("workers");
    const std::vector<int> hosts = active("run");
    int64_t survivor = -1;
    for (const nlohmann::json& w : workers) {
      if (w.at("pid") == hosts.back()) survivor = w.at("index").get<int64_t>();
    }
    nlohmann::json wanted = {{"inject", "kill_worker"}, {"worker", survivor}, {"value", 0}};
    wanted["phase"] = phase;
    wanted["spare"] = spare;
    request("run", wanted.dump());
    kill(hosts.front(), SIGKILL);
    expect_whole(pid, "run", bits_);
    const auto lines = recoveries("run");
    // A spare that dies before it is given ranks may lead to no recovery: the other takes them.
    const bool idle = read(".err").find("a spare is lost") != std::string::npos;
    if (phase == "fence" && idle && lines.size() == 1) return;
    ASSERT_EQ(lines.size(), 2U) << phase << read(".err");
    // A life that has not begun when the second one strikes is known by the same name afterwards:
    // nobody waits for it until the recovery is given up.
    EXPECT_LT(lines.back()["restored_ms"], 4900) << phase << read(".err");
    EXPECT_EQ(lines.back()["survivors_reexecuted"], 0) << phase << read(".err");
  }
  void strike_all(bool spare) {
    bits_ = undisturbed();
    for (const char* phase : {"fence", "restore", "resume", "replay"}) strike_twice(phase, spare);
  }
  std::vector<std::string> bits_;
};

TEST_F(RecoveryPhase, TheSpareThatTakesOverDiesInEach) { strike_all(true); }

TEST_F(RecoveryPhase, TheSurvivorDiesInEach) { strike_all(false); }

TEST_F(RecoveryPhase, OneSpareMoreThanNeeded) {
  bits_ = undisturbed();
  const int pid = start(train("run", {"--workers", "2", "--spares", "2"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  kill(active("run").front(), SIGKILL);
  expect_whole(pid, "run", bits_);
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["workers"], 2);
  EXPECT_EQ(lines[0]["survivors_reexecuted"], 0);
}

}  // namespace
}  // namespace sgactor::tests
