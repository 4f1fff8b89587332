// A run is gone on with where its device, kernels or libraries are others: refused, unless asked.
// OpenBLAS's kernels for an older CPU stand for a machine that has them.
#include "tests/e2e/cluster/cluster_program.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <optional>

namespace sgactor::tests {
namespace {

using nlohmann::json;

constexpr const char* kAllow = "--resilience.allow_inexact=true";

/// What is started meanwhile computes by other kernels.
class OtherMachine {
 public:
  OtherMachine() { setenv("OPENBLAS_CORETYPE", "Nehalem", 1); }
  ~OtherMachine() { unsetenv("OPENBLAS_CORETYPE"); }
  OtherMachine(const OtherMachine&) = delete;
  OtherMachine& operator=(const OtherMachine&) = delete;
};

class ResumeArithmetic : public ClusterTest {
 protected:
  void trained(const std::string& run_dir, std::vector<std::string> more) const {
    more.emplace_back("--training.steps=4");
    const ProgramResult r = run(train(run_dir, more));
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  [[nodiscard]] ProgramResult resumed(const std::string& run_dir,
                                      std::vector<std::string> more) const {
    more.emplace_back("--resume");
    more.emplace_back("--training.steps=6");
    return run(train(run_dir, more));
  }
  /// Exit code 3, one line with all of `parts`, and the run is as it was.
  void expect_refused_resume(const std::string& run_dir, const std::vector<std::string>& more,
                             const std::vector<std::string>& parts) const {
    const auto before = snapshot();
    const ProgramResult r = resumed(run_dir, more);
    EXPECT_EQ(r.exit_code, 3) << r.err;
    EXPECT_EQ(r.err.rfind("sgactor: --resume ", 0), 0U) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    for (const std::string& part : parts) {
      EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;
    }
    EXPECT_NE(r.err.find(kAllow), std::string::npos) << r.err;
    EXPECT_TRUE(snapshot() == before) << "a refused resume has changed something";
  }
  /// Lines of audit.jsonl that say by what ranks compute.
  [[nodiscard]] std::vector<json> recorded(const std::string& run_dir) const {
    std::vector<json> out;
    std::istringstream lines(read(run_dir + "/audit.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      json j = json::parse(line, nullptr, false);
      if (j.is_object() && j.value("what", "") == "arithmetic") out.push_back(std::move(j));
    }
    return out;
  }
  /// As a build from before has written it.
  void forget(const std::string& run_dir) const {
    std::string kept;
    std::istringstream lines(read(run_dir + "/audit.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\"arithmetic\"") == std::string::npos) kept += line + "\n";
    }
    write(run_dir + "/audit.jsonl", kept);
  }
  void check(const std::vector<std::string>& processes) const {
    trained("run", processes);
    ASSERT_EQ(recorded("run").size(), 1U);
    EXPECT_EQ(recorded("run")[0]["step"], 1);
    EXPECT_FALSE(recorded("run")[0].contains("inexact"));
    {
      const OtherMachine other;
      expect_refused_resume("run", processes, {"library OpenBLAS", "Nehalem, was OpenBLAS"});
      std::vector<std::string> allowed = processes;
      allowed.emplace_back(kAllow);
      const ProgramResult r = resumed("run", allowed);
      EXPECT_EQ(r.exit_code, 0) << r.err;
      EXPECT_NE(r.err.find("bits may differ from here on (resilience.allow_inexact)"),
                std::string::npos)
          << r.err;
    }
    ASSERT_EQ(recorded("run").size(), 2U);
    EXPECT_EQ(recorded("run")[1]["step"], 5);
    EXPECT_NE(recorded("run")[1]["inexact"].get<std::string>().find("Nehalem, was"),
              std::string::npos);
    EXPECT_EQ(loss_bits("run").size(), 6U);
  }
};

TEST_F(ResumeArithmetic, OfOneProcessIsComparedAndRecorded) {
  check({});
  // A past run's audit says the same, of the steps that it is true of.
  const ProgramResult audit = run({"audit", path("run")});
  EXPECT_NE(audit.out.find("note      steps 5 to 6: library OpenBLAS"), std::string::npos)
      << audit.out << audit.err;
  EXPECT_EQ(audit.out.find("note      steps 1 to"), std::string::npos) << audit.out;
}

TEST_F(ResumeArithmetic, OfWorkersIsComparedAndRecorded) { check({"--workers", "2"}); }

TEST_F(ResumeArithmetic, OfAnotherBackendIsNamed) {
  trained("run", {});
  expect_refused_resume("run", {"--devices", "reference"}, {"device kind reference, was cpu"});
  expect_refused_resume("run", {"--devices", "reference", "--workers", "2"},
                        {"worker ", "device kind reference, was cpu"});
}

TEST_F(ResumeArithmetic, IsTheSameOnAnotherMeshAndWithOtherProcesses) {
  ranks_.emplace_back("--parallelism.logical_data_parallel=2");
  trained("run", {});
  const ProgramResult two = resumed("run", {"--workers", "2", "--parallelism.zero_stage=1"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  ranks_[0] = "--parallelism.data_parallel_degree=1";
  const ProgramResult one = run(train("run", {"--resume", "--training.steps=8"}));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  const std::vector<json> lines = recorded("run");
  ASSERT_EQ(lines.size(), 3U);
  for (const json& line : lines) EXPECT_FALSE(line.contains("inexact")) << line;
}

TEST_F(ResumeArithmetic, OfSeveralKindsGoesToWorkersThatHaveThem) {
  const std::vector<std::string> two = {"--workers", "2", "--nodes", "2:2"};
  /// This process's node and another one, of which one is the other machine.
  const auto run_both = [&](std::vector<std::string> more, bool other_joins) {
    more.insert(more.end(), two.begin(), two.end());
    std::optional<OtherMachine> other;
    if (!other_joins) other.emplace();
    const int pid = start(train("run", more));
    other.reset();
    ASSERT_TRUE(wait_for([&] { return exists("run/control/token"); })) << read(".err");
    if (other_joins) other.emplace();
    const int node = start_beside({"node", "--token", path("run/control/token")});
    other.reset();
    EXPECT_EQ(wait(pid).exit_code, 0) << read(".err");
    EXPECT_EQ(wait_beside(node).exit_code, 0) << read(".err2");
  };
  run_both({"--training.steps=2"}, true);
  ASSERT_EQ(recorded("run").size(), 1U);
  const json kinds = recorded("run")[0]["arithmetic"];
  ASSERT_EQ(kinds.size(), 2U) << kinds;
  // Whoever has which machine now: ranks stay with theirs.
  run_both({"--resume", "--training.steps=4"}, false);
  ASSERT_EQ(recorded("run").size(), 2U);
  EXPECT_EQ(recorded("run")[1]["arithmetic"], kinds);
  EXPECT_FALSE(recorded("run")[1].contains("inexact"));
  // One process has one kind, and so have fewer ranks than there were.
  expect_refused_resume("run", {}, {"rank ", "library OpenBLAS"});
  expect_refused_resume("run", {"--workers", "2"}, {"worker ", "library OpenBLAS"});
  ranks_[0] = "--parallelism.data_parallel_degree=1";
  expect_refused_resume("run", {}, {"the number of ranks is another"});
}

TEST_F(ResumeArithmetic, OfARunFromBeforeIsNotAsked) {
  trained("run", {});
  forget("run");
  const OtherMachine other;
  const ProgramResult r = resumed("run", {});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(recorded("run").size(), 1U);
}

/// What a run does not go on with need not be computed by anybody.
TEST_F(ResumeArithmetic, OfARunThatIsOverIsNotAsked) {
  trained("run", {});
  const OtherMachine other;
  const ProgramResult r = run(train("run", {"--resume", "--training.steps=4"}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("nothing to do"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace sgactor::tests
