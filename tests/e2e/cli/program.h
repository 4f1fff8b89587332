#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace sgactor::tests {

/// What a run of the program left.
struct ProgramResult {
  int exit_code = -1;  ///< 128 + signal if it was killed
  std::string out;
  std::string err;
};

/// Each test in an empty directory of its own, which is the program's current directory. It holds
/// "tiny/" (config.json of a Llama with 256 ids that trains in milliseconds), "text.txt" and
/// "job.toml" (tiny/ on text.txt).
class ProgramTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Runs `sgactor ARGS` and waits.
  [[nodiscard]] ProgramResult run(const std::vector<std::string>& args) const;
  /// Starts it and returns its process id; wait() collects it.
  [[nodiscard]] int start(const std::vector<std::string>& args) const;
  [[nodiscard]] ProgramResult wait(int pid) const;

  /// Exit code 2, nothing on standard output, one line on standard error that holds every one of
  /// `parts`, and no file below the directory made, changed or removed.
  void expect_refused(const std::vector<std::string>& args,
                      const std::vector<std::string>& parts) const;

  [[nodiscard]] std::string path(const std::string& name) const { return (dir_ / name).string(); }
  [[nodiscard]] std::string read(const std::string& name) const;
  void write(const std::string& name, const std::string& bytes) const;
  [[nodiscard]] bool exists(const std::string& name) const {
    return std::filesystem::exists(dir_ / name);
  }
  /// "a/b.txt" -> content, of all files below the directory but the program's output.
  [[nodiscard]] std::map<std::string, std::string> snapshot() const;
  /// Values of "loss_bits" in metrics.jsonl of a run directory.
  [[nodiscard]] std::vector<std::string> loss_bits(const std::string& run_dir) const;

  std::filesystem::path dir_;
  std::filesystem::path cache_;  ///< $XDG_CACHE_HOME of the program, empty at first
};

}  // namespace sgactor::tests
