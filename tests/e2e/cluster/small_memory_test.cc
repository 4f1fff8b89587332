// Less memory than a plan needs is exit code 3 and one line: before anything is allocated where it
// can be known, else as the end of the run, never as a row of recoveries.
#include "tests/e2e/cluster/cluster_program.h"

#include <sys/resource.h>

namespace sgactor::tests {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsWork = false;  // sanitizers reserve more addresses than any limit leaves
#else
constexpr bool kLimitsWork = true;
#endif

class SmallMemory : public ClusterTest {
 protected:
  void set_in_config(const std::string& key, int64_t value) const {
    std::string config = read("tiny/config.json");
    const size_t at = config.find("\"" + key + "\"");
    config.replace(at, config.find(',', at) - at, "\"" + key + "\": " + std::to_string(value));
    write("tiny/config.json", config);
  }
  /// The tiny model with so many ids: nearly all of it is the embedding and the head.
  void use_vocabulary(int64_t size) const { set_in_config("vocab_size", size); }
  /// Starts a run whose processes have no more addresses than this each.
  [[nodiscard]] int start_within(int64_t bytes, const std::vector<std::string>& args) const {
    rlimit before = {};
    getrlimit(RLIMIT_AS, &before);
    rlimit within = before;
    within.rlim_cur = static_cast<rlim_t>(bytes);
    setrlimit(RLIMIT_AS, &within);
    const int pid = start(args);
    setrlimit(RLIMIT_AS, &before);
    return pid;
  }
  static void expect_too_small(const ProgramResult& result, const std::string& begins,
                               const std::vector<std::string>& parts) {
    EXPECT_EQ(result.exit_code, 3) << result.err;
    const size_t last = result.err.rfind('\n', result.err.size() - 2);
    const std::string line = last == std::string::npos ? result.err : result.err.substr(last + 1);
    EXPECT_EQ(line.rfind("sgactor: " + begins, 0), 0U) << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(line.find(part), std::string::npos) << line << part;
  }
  /// No copy of a sample at the end, no checkpoint on the way.
  std::vector<std::string> quick_ = {"--log.sample_tokens=0", "--checkpoint.interval=0",
                                     "--devices", "cpu:1"};
  [[nodiscard]] std::vector<std::string> quick(std::vector<std::string> more) const {
    more.insert(more.end(), quick_.begin(), quick_.end());
    return more;
  }
};

TEST_F(SmallMemory, OneProcessIsToldBeforeItBegins) {
  use_vocabulary(2'000'000'000);  // 1 TB of state
  const ProgramResult result = run(train("run"));
  expect_too_small(result, "the plan needs ",
                   {"2 ranks of one process", "cpu:0 has ", "training.micro_batch_size"});
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_FALSE(exists("run"));
}

TEST_F(SmallMemory, WorkersOfOneHostAreToldBeforeTheyStart) {
  use_vocabulary(2'000'000'000);
  const ProgramResult result = run(train("run", {"--workers", "2"}));
  expect_too_small(result, "the plan needs ", {"2 workers that share it", "cpu:0 has "});
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_FALSE(exists("run"));
}

TEST_F(SmallMemory, GenerateIsToldBeforeItAllocates) {
  use_vocabulary(300'000);
  set_in_config("max_position_embeddings", 1 << 18);
  const ProgramResult trained =
      run(train("run", quick({"--training.steps=1", "--parallelism.data_parallel_degree=1"})));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  // As many logits as tokens times ids: 300 GB.
  const ProgramResult result = run({"generate", "run", "--tokenizer", "bytes", "--context",
                                    "262144", "--prompt", std::string(100'000, 'a')});
  expect_too_small(result, "the plan needs ", {"cpu:0 has ", "--context"});
  EXPECT_EQ(result.out, "");
}

TEST_F(SmallMemory, AnAllocationThatFailsAtTheStartIsTheDevices) {
  if (!kLimitsWork) GTEST_SKIP() << "a sanitizer";
  use_vocabulary(4'000'000);
  const int64_t limit = int64_t{3} << 30;
  const auto args = quick({"--training.steps=1", "--parallelism.data_parallel_degree=1"});
  expect_too_small(wait(start_within(limit, train("one", args))), "",
                   {"no memory for ", "arena of rank 0"});
  auto alone = args;
  alone.insert(alone.end(), {"--workers", "1"});
  expect_too_small(wait(start_within(limit, train("workers", alone))), "worker 0 ",
                   {"no memory for ", "arena of rank 0"});
}

TEST_F(SmallMemory, AWorkerThatCannotHoldMoreEndsTheRun) {
  if (!kLimitsWork) GTEST_SKIP() << "a sanitizer";
  use_vocabulary(500'000);
  // One rank has room, with its copy for checkpoints, and the arenas of two have not: at 2,000 to
  // 2,300 MiB.
  const int pid = start_within(int64_t{2150} << 20,
                               train("run", quick({"--training.steps=100000", "--workers", "2"})));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 2; })) << read(".err");
  const ProgramResult asked = run_beside({"ctl", path("run"), "resize", "1", "--timeout", "2"});
  const ProgramResult result = wait(pid);
  expect_too_small(result, "worker ", {"no memory for ", "arena of rank "});
  EXPECT_EQ(result.err.find("again and again"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.find("while recovering"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace sgactor::tests
