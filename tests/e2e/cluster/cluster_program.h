#pragma once
#include "tests/e2e/cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace sgactor::tests {

/// Runs of several processes. Each test's processes carry the run directory's name in their words,
/// so that those that are left behind are found.
class ClusterTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    // Two logical ranks: half a micro-batch each, whatever the number of workers.
    ranks_ = {"--parallelism.data_parallel_degree=2", "--data.validation_fraction=0"};
  }
  /// Nothing of the run may be left. What is left is ended, so that it spoils no other test.
  void TearDown() override {
    EXPECT_TRUE(wait_for([&] { return processes("").empty(); })) << "processes are left behind";
    for (const int pid : processes("")) kill(pid, SIGKILL);
    (void)wait_for([&] { return processes("").empty(); });
    ProgramTest::TearDown();
  }

  [[nodiscard]] std::vector<std::string> train(const std::string& run_dir,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"train", "job.toml", "--run-dir", path(run_dir)};
    args.insert(args.end(), ranks_.begin(), ranks_.end());
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  /// Waits until a condition holds, at most 20 seconds.
  static bool wait_for(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      ::poll(nullptr, 0, 5);
    }
    return true;
  }
  /// Process ids of this test's program whose words contain `word`; zombies do not count.
  [[nodiscard]] std::vector<int> processes(const std::string& word) const {
    std::vector<int> out;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ostringstream words;
      words << std::ifstream(entry.path() / "cmdline", std::ios::binary).rdbuf();
      const std::string text = words.str();
      if (text.find(dir_.string()) == std::string::npos) continue;
      if (text.find(word) != std::string::npos) out.push_back(std::stoi(name));
    }
    return out;
  }
  /// Processes `sgactor worker …` of the run.
  [[nodiscard]] std::vector<int> workers() const { return processes(std::string("worker\0", 7)); }
  [[nodiscard]] int num_steps(const std::string& run_dir) const {
    const std::string text = read(run_dir + "/metrics.jsonl");
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  /// The control port of a run that has started, from its token.
  [[nodiscard]] int port(const std::string& run_dir) const {
    const std::string token = read(run_dir + "/control/token");
    const size_t at = token.find("address 127.0.0.1:");
    return at == std::string::npos ? 0 : std::stoi(token.substr(at + 18));
  }

  /// A second process beside the one that start() has begun; its output lies in ".out2", ".err2".
  [[nodiscard]] int start_beside(const std::vector<std::string>& args,
                                 const std::string& program = SGA_PROGRAM) const {
    std::vector<std::string> words = {program};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = path(".out2");
    const std::string err = path(".err2");
    const int pid = fork();
    if (pid != 0) return pid;
    // In the child only calls that are safe after a fork.
    if (chdir(dir_.c_str()) != 0) _exit(126);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  [[nodiscard]] ProgramResult wait_beside(int pid) const {
    int status = 0;
    waitpid(pid, &status, 0);
    ProgramResult result;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read(".out2");
    result.err = read(".err2");
    return result;
  }
  [[nodiscard]] ProgramResult run_beside(const std::vector<std::string>& args,
                                         const std::string& program = SGA_PROGRAM) const {
    return wait_beside(start_beside(args, program));
  }

  std::vector<std::string> ranks_;
};

}  // namespace sgactor::tests
