#include "tests/fault/process/fault_program.h"

#include <cstdlib>

namespace sgactor::tests {
namespace {

/// The process that the user has started is killed; the same command with --resume goes on.
class CoordinatorLoss : public FaultTest {
 protected:
  void SetUp() override {
    FaultTest::SetUp();
    ranks_.push_back("--resilience.orphan_timeout=30");
    ranks_.push_back("--checkpoint.interval=0");  // nothing on disk to resume from
  }
  [[nodiscard]] std::vector<std::string> again(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = train("run", {"--workers", "2", "--spares", "1", "--resume"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  [[nodiscard]] int start_run() const {
    return start(train("run", {"--workers", "2", "--spares", "1"}));
  }
  /// Goes on to the end; returns who hosted ranks once it did.
  std::vector<int> resume(const std::vector<std::string>& bits) {
    const int64_t before = generation("run");
    const int pid = start(again());
    std::vector<int> hosts;
    EXPECT_TRUE(wait_for([&] {
      if (generation("run") > before) hosts = active("run");
      return !hosts.empty() || num_steps("run") == kSteps;
    })) << read(".err");
    expect_whole(pid, "run", bits);
    return hosts;
  }
  /// The line of the coordinator's loss; survivors have kept what they had.
  void expect_taken_over(int ranks_moved) const {
    int found = 0;
    for (const nlohmann::json& line : recoveries("run")) {
      if (line["fault"] != "coordinator exit") continue;
      ++found;
      EXPECT_EQ(line["ranks_moved"], ranks_moved) << line;
      EXPECT_EQ(line["survivors_reexecuted"], 0) << line;
      EXPECT_EQ(line["steps_again"], 0) << line;
    }
    EXPECT_EQ(found, 1) << read(".err");
  }
};

TEST_F(CoordinatorLoss, InMidStepTheSameProcessesGoOn) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> hosts = active("run");
  kill(pid, SIGKILL);
  (void)wait(pid);
  EXPECT_EQ(resume(bits), hosts) << read(".err");
  expect_taken_over(0);
}

TEST_F(CoordinatorLoss, BetweenJournalWriteAndBroadcast) {
  const std::vector<std::string> bits = undisturbed();
  const Injections on;
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> hosts = active("run");
  request("run", R"({"inject":"kill_coordinator","worker":-1,"value":0,"phase":"journalled"})");
  EXPECT_EQ(wait(pid).exit_code, 128 + SIGKILL);
  // The step that is committed last has been told to nobody.
  const std::string journal = read("run/journal.log");
  const size_t last = journal.rfind("commit step=");
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(std::stoi(journal.substr(last + 12)), num_steps("run") + 1);
  EXPECT_EQ(resume(bits), hosts) << read(".err");
  expect_taken_over(0);
}

TEST_F(CoordinatorLoss, InEachPhaseOfARecovery) {
  const std::vector<std::string> bits = undisturbed();
  const Injections on;
  for (const std::string phase : {"fence", "restore", "resume", "replay"}) {
    std::filesystem::remove_all(path("run"));
    const int pid = start_run();
    ASSERT_TRUE(is_past("run", 10)) << read(".err");
    request("run",
            R"({"inject":"kill_coordinator","worker":-1,"value":0,"phase":")" + phase + R"("})");
    kill(active("run").front(), SIGKILL);
    EXPECT_EQ(wait(pid).exit_code, 128 + SIGKILL) << phase;
    (void)resume(bits);
    EXPECT_EQ(recoveries("run").back()["survivors_reexecuted"], 0) << phase << read(".err");
    EXPECT_LT(recoveries("run").back()["restored_ms"], 4900) << phase << ": nobody was waited for";
  }
}

TEST_F(CoordinatorLoss, AWorkerDiesWhileNobodyIsThere) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> hosts = active("run");
  kill(pid, SIGKILL);
  (void)wait(pid);
  kill(hosts.front(), SIGKILL);
  const std::vector<int> after = resume(bits);
  EXPECT_NE(std::find(after.begin(), after.end(), hosts.back()), after.end());
  expect_taken_over(1);
}

TEST_F(CoordinatorLoss, AllWorkersDieTooAndTheMirrorIsLeft) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> hosts = active("run");
  kill(pid, SIGKILL);
  (void)wait(pid);
  for (const int worker : hosts) kill(worker, SIGKILL);
  (void)resume(bits);
}

TEST_F(CoordinatorLoss, NobodyButTheNodeIsLeft) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  std::vector<int> workers;
  const nlohmann::json before = state("run");
  for (const nlohmann::json& worker : before.at("workers")) workers.push_back(worker.at("pid"));
  ASSERT_EQ(workers.size(), 3U);
  kill(pid, SIGKILL);
  (void)wait(pid);
  for (const int worker : workers) kill(worker, SIGKILL);
  const std::vector<int> after = resume(bits);
  EXPECT_EQ(after.size(), 2U);
  ASSERT_FALSE(recoveries("run").empty()) << read(".err");
  EXPECT_GE(recoveries("run").front()["from_step"], 8) << "from the mirror";
}

TEST_F(CoordinatorLoss, NobodyAtAllIsLeft) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> all = processes("run");
  for (const int process : all) kill(process, SIGKILL);
  (void)wait(pid);
  (void)resume(bits);
  ASSERT_FALSE(recoveries("run").empty()) << read(".err");
  EXPECT_GE(recoveries("run").front()["from_step"], 8) << "from the mirror";
}

TEST_F(CoordinatorLoss, Twice) {
  const std::vector<std::string> bits = undisturbed();
  int pid = start_run();
  for (const int step : {8, 20}) {
    ASSERT_TRUE(is_past("run", step)) << read(".err");
    kill(pid, SIGKILL);
    (void)wait(pid);
    pid = start(again());
  }
  expect_whole(pid, "run", bits);
}

TEST_F(CoordinatorLoss, NobodyComesAndNothingIsLeft) {
  const int pid = start(train("run", {"--workers", "2", "--spares", "1", "--training.steps=100000",
                                      "--resilience.orphan_timeout=1"}));
  ASSERT_TRUE(is_past("run", 5)) << read(".err");
  kill(pid, SIGKILL);
  (void)wait(pid);
  EXPECT_FALSE(processes("run").empty());
  EXPECT_TRUE(wait_for([&] { return processes("run").empty(); }));
}

TEST_F(CoordinatorLoss, AnotherJobSendsThoseThatWaitAway) {
  const int pid = start_run();
  ASSERT_TRUE(is_past("run", 5)) << read(".err");
  kill(pid, SIGKILL);
  (void)wait(pid);
  // From a checkpoint, if there was one.
  (void)run(again({"--optimizer.lr=0.5"}));
  EXPECT_TRUE(wait_for([&] { return processes("run").empty(); }));
  for (const nlohmann::json& line : recoveries("run")) EXPECT_NE(line["fault"], "coordinator exit");
}

}  // namespace
}  // namespace sgactor::tests
