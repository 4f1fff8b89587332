#include "tests/e2e/cluster/cluster_program.h"

#include <algorithm>

namespace sgactor::tests {
namespace {

class ClusterRun : public ClusterTest {};

TEST_F(ClusterRun, TwoWorkersGiveTheBitsOfOneProcess) {
  const ProgramResult one = run(train("one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const ProgramResult two = run(train("two", {"--workers", "2"}));
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(loss_bits("one").size(), 6U);
  EXPECT_EQ(loss_bits("two"), loss_bits("one"));
  EXPECT_NE(two.out.find("join      sgactor node --join 127.0.0.1:"), std::string::npos) << two.out;
  // Keys and token are gone with the run.
  EXPECT_FALSE(exists("two/control"));
}

TEST_F(ClusterRun, OneWorkerMayHostAllRanks) {
  const ProgramResult one = run(train("one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const ProgramResult apart = run(train("apart", {"--workers", "1"}));
  ASSERT_EQ(apart.exit_code, 0) << apart.err;
  EXPECT_EQ(loss_bits("apart"), loss_bits("one"));
}

TEST_F(ClusterRun, ANodeThatJoinsByHandIsNeededAndWorks) {
  const ProgramResult one = run(train("one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const int coordinator = start(train("run", {"--workers", "2", "--nodes", "2:2"}));
  ASSERT_TRUE(wait_for([&] { return exists("run/control/token"); }));
  const ProgramResult node = run_beside({"node", "--token", path("run/control/token")});
  const ProgramResult result = wait(coordinator);
  EXPECT_EQ(node.exit_code, 0) << node.err;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(loss_bits("run"), loss_bits("one"));
}

TEST_F(ClusterRun, InterruptFinishesTheStepAndLeavesACheckpoint) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string name = "run" + std::to_string(signal);
    const int pid = start(train(name, {"--workers", "2", "--training.steps=100000"}));
    ASSERT_TRUE(wait_for([&] { return num_steps(name) >= 3; })) << read(".err");
    kill(pid, signal);
    const ProgramResult result = wait(pid);
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_TRUE(processes(name).empty());
    // Goes on from there, with the workers' help.
    const int steps = num_steps(name);
    const ProgramResult more = run(train(
        name, {"--workers", "2", "--resume", "--training.steps=" + std::to_string(steps + 2)}));
    EXPECT_EQ(more.exit_code, 0) << more.err;
    EXPECT_EQ(num_steps(name), steps + 2);
  }
}

TEST_F(ClusterRun, ANodeThatIsAskedToStopStopsTheRunInOrder) {
  const int pid = start(train("run", {"--workers", "2", "--training.steps=100000"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 3; })) << read(".err");
  const std::vector<int> nodes = processes(std::string("node\0", 5));
  ASSERT_EQ(nodes.size(), 1U);
  kill(nodes[0], SIGTERM);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_NE(result.err.find("was asked to stop"), std::string::npos) << result.err;
}

TEST_F(ClusterRun, AKilledWorkerEndsTheRunWithItsNameWithinTwoSeconds) {
  const int pid =
      start(train("run", {"--workers", "2", "--training.steps=100000", "--resilience.mode=off"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 3; })) << read(".err");
  const std::vector<int> there = workers();
  ASSERT_EQ(there.size(), 2U);
  const auto start_time = std::chrono::steady_clock::now();
  kill(there[1], SIGKILL);
  const ProgramResult result = wait(pid);
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(2));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("worker "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("signal 9"), std::string::npos) << result.err;
  EXPECT_TRUE(processes("run").empty());
}

TEST_F(ClusterRun, NobodyOutlivesAKilledCoordinator) {
  const int pid = start(
      train("run", {"--workers", "2", "--training.steps=100000", "--resilience.orphan_timeout=0"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 2; })) << read(".err");
  ASSERT_EQ(workers().size(), 2U);
  const auto start_time = std::chrono::steady_clock::now();
  kill(pid, SIGKILL);
  (void)wait(pid);
  EXPECT_TRUE(wait_for([&] { return processes("run").empty(); }));
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(2));
}

TEST_F(ClusterRun, NobodyOutlivesAKilledNode) {
  const int pid = start(train("run", {"--workers", "2", "--training.steps=100000"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 2; })) << read(".err");
  const std::vector<int> nodes = processes(std::string("node\0", 5));
  ASSERT_EQ(nodes.size(), 1U);
  kill(nodes[0], SIGKILL);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(processes("run").empty());
}

TEST_F(ClusterRun, ALateNodeBecomesASpareAndEndsWithTheRun) {
  const int pid = start(train("run", {"--workers", "2", "--training.steps=100000"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 2; })) << read(".err");
  const int node = start_beside({"node", "--token", path("run/control/token")});
  ASSERT_TRUE(wait_for([&] { return read(".err").find("as a spare") != std::string::npos; }));
  kill(pid, SIGINT);
  EXPECT_EQ(wait(pid).exit_code, 130);
  EXPECT_EQ(wait_beside(node).exit_code, 0);
}

TEST_F(ClusterRun, SparesAreUpAndHostNothing) {
  const int pid =
      start(train("run", {"--workers", "2", "--spares", "1", "--training.steps=100000"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 2; })) << read(".err");
  EXPECT_EQ(workers().size(), 3U);
  kill(pid, SIGINT);
  EXPECT_EQ(wait(pid).exit_code, 130);
}

}  // namespace
}  // namespace sgactor::tests
