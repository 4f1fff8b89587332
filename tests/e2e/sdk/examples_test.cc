// Both examples, built outside of the tree against an installed sgactor, train llama-tiny on four
// logical ranks in one process.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace sgactor::tests {
namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// The prefix and the examples, installed and built once for all tests of this program.
class SdkExamples : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::path(testing::TempDir()) / "sga_sdk_examples";
    fs::remove_all(root_);
    fs::create_directories(root_ / "data");
    setenv("XDG_CACHE_HOME", (root_ / "cache").c_str(), 1);
    const fs::path examples = fs::path(SGA_SOURCE_DIR) / "apps/examples";
    fs::copy_file(examples / "data/shakespeare.txt", root_ / "data/shakespeare.txt");
    fs::copy(examples / "strategies", root_ / "strategies", fs::copy_options::recursive);
    ASSERT_EQ(shell(std::string(SGA_CMAKE) + " --install " + SGA_BUILD_DIR + " --prefix " +
                    (root_ / "prefix").string()),
              0)
        << slurp(root_ / "out.txt");
    for (const std::string name : {"diloco", "topk"}) {
      const std::string dir = (root_ / "strategies" / name).string();
      ASSERT_EQ(shell(std::string(SGA_CMAKE) + " -S " + dir + " -B " + dir +
                      "/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=" + SGA_CXX +
                      " -DCMAKE_PREFIX_PATH=" + (root_ / "prefix").string()),
                0)
          << slurp(root_ / "out.txt");
      ASSERT_EQ(shell(std::string(SGA_CMAKE) + " --build " + dir + "/build"), 0)
          << slurp(root_ / "out.txt");
    }
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  static int shell(const std::string& command) {
    const int status =
        std::system((command + " > " + (root_ / "out.txt").string() + " 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  struct Run {
    std::vector<double> losses;
    std::vector<std::string> bits;
  };
  /// Trains the example's own job in a run directory of that name.
  static Run train(const std::string& example, const std::string& run, const std::string& more) {
    const fs::path job = root_ / "strategies" / example / (example + ".toml");
    const fs::path dir = root_ / run;
    const std::string program = (root_ / "prefix" / SGA_INSTALL_BINDIR / "sgactor").string();
    EXPECT_EQ(shell(program + " train " + job.string() + " --run-dir " + dir.string() + " " + more),
              0)
        << slurp(root_ / "out.txt");
    Run out;
    std::ifstream metrics(dir / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const auto step = nlohmann::json::parse(line);
      out.losses.push_back(step["loss"]);
      out.bits.push_back(step["loss_bits"]);
    }
    return out;
  }

  static void expect_trains(const std::string& example) {
    const Run first = train(example, example + "-1", "");
    ASSERT_EQ(first.losses.size(), 30U);
    EXPECT_LT(first.losses.back(), first.losses.front() - 1.0);
    const Run second = train(example, example + "-2", "");
    EXPECT_EQ(first.bits, second.bits);
    const Run mesh = train(example, example + "-mesh", "--strategy.name=mesh --strategy.options=");
    ASSERT_EQ(mesh.bits.size(), 30U);
    EXPECT_EQ(first.bits[0], mesh.bits[0]);  // before the first update nothing differs
    EXPECT_NE(first.bits[29], mesh.bits[29]);
  }

  static inline fs::path root_;
};

TEST_F(SdkExamples, DilocoTrains) { expect_trains("diloco"); }

TEST_F(SdkExamples, TopKTrains) { expect_trains("topk"); }

TEST_F(SdkExamples, TopKOfAllElementsAndTwoRanksIsTheExactSum) {
  const std::string two = "--parallelism.logical_data_parallel=2 --training.steps=5 ";
  const Run all = train("topk", "topk-all", two + "--strategy.options=ratio=1");
  const Run mesh = train("topk", "topk-none", two + "--strategy.name=mesh --strategy.options=");
  ASSERT_EQ(all.bits.size(), 5U);
  EXPECT_EQ(all.bits, mesh.bits);
}

TEST_F(SdkExamples, TopKHasTheSameBitsInTwoProcesses) {
  const std::string five = "--training.steps=5 ";
  const Run one = train("topk", "topk-one", five);
  const Run two = train("topk", "topk-two", five + "--workers 2");
  ASSERT_EQ(one.bits.size(), 5U);
  EXPECT_EQ(one.bits, two.bits);
}

TEST_F(SdkExamples, RefuseWhatTheyCannotRun) {
  for (const auto& [more, part] : std::vector<std::pair<std::string, std::string>>{
           {"--parallelism.zero_stage=1", "expected parallelism.zero_stage 0"},
           {"--strategy.options=interval=0", "option interval: expected an integer from 1"},
           {"--strategy.options=intervall=5", "unknown option intervall"}}) {
    const fs::path job = root_ / "strategies/diloco/diloco.toml";
    const std::string program = (root_ / "prefix" / SGA_INSTALL_BINDIR / "sgactor").string();
    EXPECT_EQ(shell(program + " train " + job.string() + " --run-dir " +
                    (root_ / "refused").string() + " " + more),
              2);
    EXPECT_NE(slurp(root_ / "out.txt").find(part), std::string::npos) << slurp(root_ / "out.txt");
    EXPECT_FALSE(fs::exists(root_ / "refused"));
  }
}

TEST_F(SdkExamples, AreNotResumed) {
  train("diloco", "resumed", "--training.steps=2");
  const std::string program = (root_ / "prefix" / SGA_INSTALL_BINDIR / "sgactor").string();
  EXPECT_EQ(shell(program + " train --resume --run-dir " + (root_ / "resumed").string() +
                  " --training.steps=4"),
            2);
  EXPECT_NE(slurp(root_ / "out.txt").find("\"diloco\" keeps state that checkpoints do not hold"),
            std::string::npos)
      << slurp(root_ / "out.txt");
}

}  // namespace
}  // namespace sgactor::tests
