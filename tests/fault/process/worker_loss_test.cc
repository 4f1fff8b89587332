#include "tests/fault/process/fault_program.h"

namespace sgactor::tests {
namespace {

class WorkerLoss : public FaultTest {
 protected:
  /// Survivors kept what they had.
  static void expect_in_place(const nlohmann::json& line) {
    EXPECT_EQ(line["steps_again"], 0);
    EXPECT_EQ(line["survivors_reexecuted"], 0);
    EXPECT_EQ(line["ranks_moved"], 1);
  }
};

TEST_F(WorkerLoss, ASpareTakesOverAndNoBitChanges) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(train("run", {"--workers", "2", "--spares", "1"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> hosts = active("run");
  ASSERT_EQ(hosts.size(), 2U);
  kill(hosts[1], SIGKILL);
  expect_whole(pid, "run", bits);
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["fault"], "worker exit");
  EXPECT_EQ(lines[0]["generation"], 2);
  EXPECT_EQ(lines[0]["workers"], 2);
  EXPECT_EQ(lines[0]["ranks_moved"], 1);
  expect_in_place(lines[0]);
  EXPECT_LE(lines[0]["from_step"], lines[0]["step"]);
  EXPECT_NE(lines[0]["culprit"].get<std::string>().find("signal 9"), std::string::npos);
  EXPECT_NE(read(".out").find("recovered worker exit at step"), std::string::npos);
}

TEST_F(WorkerLoss, WithoutASpareAFreshWorkerTakesOver) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(train("run", {"--workers", "2"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  kill(active("run").front(), SIGKILL);
  expect_whole(pid, "run", bits);
  const auto lines = recoveries("run");
  ASSERT_GE(lines.size(), 1U);
  EXPECT_EQ(lines[0]["workers"], 2);
  expect_in_place(lines[0]);
}

TEST_F(WorkerLoss, AFreshWorkerThatCannotLoadEndsTheRunWithTheReason) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 26);
  write("text.txt", text);
  const int pid = start(train("run", {"--workers", "2", "--training.steps=100000",
                                      "--data.kind=text", "--data.path=" + path("text.txt")}));
  ASSERT_TRUE(is_past("run", 3)) << read(".err");
  std::filesystem::remove(path("text.txt"));
  kill(active("run").back(), SIGKILL);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_NE(result.err.find("text.txt"), std::string::npos) << result.err;
  EXPECT_TRUE(processes("run").empty());
}

/// A spare whose library has other kernels than that of those who train. Runs go on until they are
/// interrupted: a node takes its time to join.
class OtherArithmetic : public WorkerLoss {
 protected:
  static constexpr const char* kEndless = "--training.steps=100000";

  void interrupt(int pid) {
    kill(pid, SIGINT);
    const ProgramResult result = wait(pid);
    EXPECT_EQ(result.exit_code, 130) << result.err;
  }
  [[nodiscard]] bool has_recovered() const {
    const auto lines = recoveries("run");
    return !lines.empty() && lines.back()["first_new_step_ms"].is_number();
  }
  /// Returns the recoveries of a run that loses a worker once the spare is there.
  std::vector<nlohmann::json> lose_one(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"--workers", "2", kEndless};
    args.insert(args.end(), more.begin(), more.end());
    const int pid = start(train("run", args));
    EXPECT_TRUE(is_past("run", 10)) << read(".err");
    setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
    const int node =
        start_beside({"node", "--token", path("run/control/token"), "--devices", "cpu:1"});
    unsetenv("OPENBLAS_CORETYPE");
    EXPECT_TRUE(wait_for([&] {
      const nlohmann::json s = state("run");
      return s.is_object() && s.at("workers").size() == 3;
    })) << read(".err");
    const std::vector<int> hosts = active("run");
    if (!hosts.empty()) kill(hosts.back(), SIGKILL);
    EXPECT_TRUE(wait_for([&] { return has_recovered(); })) << read(".err");
    const int until = num_steps("run") + 20;
    EXPECT_TRUE(wait_for([&] { return num_steps("run") >= until; })) << read(".err");
    interrupt(pid);
    (void)wait_beside(node);
    return recoveries("run");
  }
};

TEST_F(OtherArithmetic, TakesNothingOver) {
  const auto lines = lose_one({});
  EXPECT_NE(read(".err").find("it takes nothing over"), std::string::npos) << read(".err");
  ASSERT_FALSE(lines.empty());
  for (const nlohmann::json& line : lines) EXPECT_EQ(line["inexact"], false) << line;
  const std::vector<std::string> bits = loss_bits("run");
  const int pid = start(train("quiet", {kEndless}));
  EXPECT_TRUE(wait_for([&] { return num_steps("quiet") >= static_cast<int>(bits.size()); }));
  interrupt(pid);
  std::vector<std::string> undisturbed = loss_bits("quiet");
  ASSERT_GE(undisturbed.size(), bits.size());
  undisturbed.resize(bits.size());
  EXPECT_EQ(bits, undisturbed);
}

TEST_F(OtherArithmetic, MayIfAskedAndTheRecordSaysSo) {
  const auto lines = lose_one({"--resilience.allow_inexact=true"});
  ASSERT_EQ(lines.size(), 1U) << read(".err");
  EXPECT_EQ(lines[0]["inexact"], true) << lines[0];
  expect_in_place(lines[0]);
}

TEST_F(WorkerLoss, AHungWorkerIsFoundAndReplaced) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(train("run", {"--workers", "2", "--spares", "1"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  kill(active("run").back(), SIGSTOP);
  expect_whole(pid, "run", bits);
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["fault"], "hang");
  EXPECT_GE(lines[0]["detected_ms"], 300);
  expect_in_place(lines[0]);
}

TEST_F(WorkerLoss, AnActorThatFailsBeginsAgainInItsProcess) {
  // Time for two.
  const std::vector<std::string> more = {"--training.steps=300", "--checkpoint.interval=0"};
  const ProgramResult quiet = run(train("quiet", more));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  const Injections on;
  const int pid =
      start(train("run", {"--workers", "2", "--training.steps=300", "--checkpoint.interval=0"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const std::vector<int> before = active("run");
  const nlohmann::json workers = state("run").at("workers");
  for (size_t generation = 2; generation <= 3; ++generation) {
    request("run",
            nlohmann::json{{"inject", "kill_actor"}, {"worker", workers[1]["index"]}, {"value", 0}}
                .dump());
    ASSERT_TRUE(wait_for([&] { return recoveries("run").size() == generation - 1; }))
        << read(".err");
    EXPECT_EQ(active("run"), before) << "the same processes";
  }
  expect_whole(pid, "run", loss_bits("quiet"));
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 2U);
  for (const nlohmann::json& line : lines) {
    EXPECT_EQ(line["fault"], "actor failure");
    EXPECT_EQ(line["steps_again"], 0);
    EXPECT_EQ(line["survivors_reexecuted"], 0);
    EXPECT_EQ(line["ranks_moved"], 0);
    EXPECT_EQ(line["workers"], 2);
  }
}

TEST_F(WorkerLoss, TwoAtOnce) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(train("run", {"--workers", "2", "--spares", "1"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  for (const int worker : active("run")) kill(worker, SIGKILL);
  expect_whole(pid, "run", bits);
}

TEST_F(WorkerLoss, AnotherOneDuringTheRecovery) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(train("run", {"--workers", "2", "--spares", "2"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const int first = active("run").front();
  kill(first, SIGKILL);
  ASSERT_TRUE(wait_for([&] { return generation("run") >= 2; }));
  kill(active("run").front(), SIGKILL);
  expect_whole(pid, "run", bits);
  EXPECT_GE(recoveries("run").size(), 2U);
}

TEST_F(WorkerLoss, ShardedAndPipelinedStateComesBack) {
  const std::vector<std::vector<std::string>> meshes = {
      {"--parallelism.zero_stage=3"},
      {"--parallelism.data_parallel_degree=1", "--parallelism.logical_data_parallel=1",
       "--parallelism.pipeline_parallel_degree=2"}};
  for (size_t i = 0; i < meshes.size(); ++i) {
    std::vector<std::string> more = meshes[i];
    const std::string quiet = "quiet" + std::to_string(i);
    const ProgramResult result = run(train(quiet, more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    more.insert(more.end(), {"--workers", "2", "--spares", "1"});
    const std::string name = "run" + std::to_string(i);
    const int pid = start(train(name, more));
    ASSERT_TRUE(is_past(name, 10)) << read(".err");
    kill(active(name).back(), SIGKILL);
    expect_whole(pid, name, loss_bits(quiet));
    const auto lines = recoveries(name);
    ASSERT_EQ(lines.size(), 1U);
    expect_in_place(lines[0]);
  }
}

TEST_F(WorkerLoss, AnInterruptDuringARecoveryLeavesACheckpointToGoOnFrom) {
  const std::vector<std::string> bits = undisturbed();
  const int pid = start(train("run", {"--workers", "2", "--spares", "1"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  kill(active("run").front(), SIGKILL);
  ASSERT_TRUE(wait_for([&] { return generation("run") >= 2; }));
  kill(pid, SIGINT);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  const ProgramResult rest = run(train("run", {"--workers", "2", "--resume"}));
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(loss_bits("run"), bits);
}

TEST_F(WorkerLoss, TooManyFaultsEndTheRunWithAReport) {
  const int pid = start(train("run", {"--workers", "2", "--spares", "1", "--training.steps=100000",
                                      "--resilience.max_faults=0"}));
  ASSERT_TRUE(is_past("run", 5)) << read(".err");
  kill(active("run").front(), SIGKILL);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("1 faults within a minute"), std::string::npos) << result.err;
}

TEST_F(WorkerLoss, WithoutResilienceTheFirstLossEndsTheRun) {
  const int pid =
      start(train("run", {"--workers", "2", "--resilience.mode=off", "--training.steps=100000"}));
  ASSERT_TRUE(is_past("run", 5)) << read(".err");
  kill(active("run").front(), SIGKILL);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("signal 9"), std::string::npos) << result.err;
}

TEST_F(WorkerLoss, WhatAKilledCoordinatorLeftInMemoryTheNextRunRemoves) {
  const int pid = start(
      train("run", {"--workers", "2", "--training.steps=100000", "--resilience.orphan_timeout=0"}));
  ASSERT_TRUE(is_past("run", 5)) << read(".err");
  kill(pid, SIGKILL);
  (void)wait(pid);
  const std::string left = "/dev/shm/sgactor-" + std::to_string(pid) + "-0";
  EXPECT_TRUE(std::filesystem::exists(left));
  ASSERT_TRUE(wait_for([&] { return processes("run").empty(); }));
  const ProgramResult next = run(train("next", {"--workers", "2", "--training.steps=2"}));
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_FALSE(std::filesystem::exists(left));
}

}  // namespace
}  // namespace sgactor::tests
