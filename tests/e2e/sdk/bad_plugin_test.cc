// A plug-in or strategy that is wrong: one line that names it, exit code 2, nothing written; one
// that throws while it trains: exit code 1 and one line.
#include "tests/e2e/cli/program.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::tests {
namespace {

std::string plugin(const std::string& name) {
  return fmt::format("{}/sga_test_plugin_{}.so", SGA_TEST_PLUGIN_DIR, name);
}

class BadPlugin : public ProgramTest {
 protected:
  void expect_plugin_refused(const std::string& file, const std::string& part) const {
    const std::string option = "--plugins.libraries=" + file;
    for (const char* command : {"train", "plan"}) {
      expect_refused({command, "job.toml", option},
                     {option + ": plugins.libraries: plug-in ", file, part});
    }
  }
  /// Two logical ranks.
  [[nodiscard]] static std::vector<std::string> train(std::vector<std::string> more) {
    more.insert(more.begin(),
                {"train", "job.toml", "--run-dir", "run", "--parallelism.logical_data_parallel=2"});
    return more;
  }
};

TEST_F(BadPlugin, IsNamed) {
  expect_plugin_refused("none.so", "no such file; build it first (docs/guides/strategies.md)");
  expect_plugin_refused("text.txt", "cannot be loaded");
  expect_plugin_refused(plugin("no_symbols"), "is no plug-in of this program");
  expect_plugin_refused(plugin("other_version"), "was built for \"strategy SDK 0, gcc 4\"");
  expect_plugin_refused(plugin("throws"), "threw: no luck today");
  expect_plugin_refused(plugin("empty"), "adds no strategy");
  expect_plugin_refused(plugin("taken"), "which is there already");
}

TEST_F(BadPlugin, StrategyIsNamed) {
  expect_refused({"train", "job.toml", "--strategy.name=test-sum"},
                 {"--strategy.name=test-sum: strategy.name: expected one of mesh, "
                  "replicated-vocabulary, got \"test-sum\""});
  expect_refused({"train", "job.toml", "--strategy.options=fast=1"},
                 {"strategy \"mesh\": unknown option fast"});
  expect_refused({"train", "job.toml", "--strategy.options=fast"},
                 {"strategy.options: expected \"name=value\", got \"fast\""});
}

TEST_F(BadPlugin, GoodOneKeepsTheBits) {
  const std::string library = "--plugins.libraries=" + plugin("good");
  const ProgramResult mesh = run(train({}));
  ASSERT_EQ(mesh.exit_code, 0) << mesh.err;
  const auto bits = loss_bits("run");
  ASSERT_EQ(bits.size(), 6U);
  std::filesystem::rename(path("run"), path("first"));
  const ProgramResult sum = run(train({library, "--strategy.name=test-sum"}));
  ASSERT_EQ(sum.exit_code, 0) << sum.err;
  EXPECT_EQ(loss_bits("run"), bits);
}

TEST_F(BadPlugin, ThrowingInAStepEndsTheRun) {
  const ProgramResult result =
      run(train({"--plugins.libraries=" + plugin("good"), "--strategy.name=test-sum",
                 "--strategy.options=throws=1"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("strategy \"test-sum\" threw: thrown in step 2"), std::string::npos)
      << result.err;
  EXPECT_EQ(loss_bits("run").size(), 1U);
}

TEST_F(BadPlugin, ThrowingInAWorkerEndsEveryProcess) {
  const ProgramResult result =
      run(train({"--plugins.libraries=" + plugin("good"), "--strategy.name=test-sum",
                 "--strategy.options=throws=1", "--resilience.mode=off", "--workers", "2"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("thrown in step 2"), std::string::npos) << result.err;
}

TEST_F(BadPlugin, RulesOfAStrategyReachThePlan) {
  const std::vector<std::string> plan = {"plan", "job.toml", "--passes", "--no-cache",
                                         "--parallelism.tensor_parallel_degree=2"};
  const ProgramResult cut = run(plan);
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  std::vector<std::string> whole_plan = plan;
  whole_plan.emplace_back("--strategy.name=replicated-vocabulary");
  const ProgramResult whole = run(whole_plan);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  // Seven matrices a layer; with the table of mesh, embedding and head too.
  EXPECT_NE(cut.out.find("16 of 21 parameters cut over tp 2"), std::string::npos) << cut.out;
  EXPECT_NE(whole.out.find("14 of 21 parameters cut over tp 2"), std::string::npos) << whole.out;
}

}  // namespace
}  // namespace sgactor::tests
