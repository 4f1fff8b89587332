#pragma once
#include "tests/e2e/cluster/cluster_program.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace sgactor::tests {

/// Runs whose workers are lost. Every run is compared with an undisturbed one of one process.
class FaultTest : public ClusterTest {
 protected:
  static constexpr int kSteps = 60;

  void SetUp() override {
    ClusterTest::SetUp();
    ranks_.push_back("--training.steps=" + std::to_string(kSteps));
    ranks_.push_back("--resilience.mirror_interval=4");
    ranks_.push_back("--resilience.max_faults=1000");
    before_ = mirrors();
  }
  /// No process (the base looks) and no copy in memory is left behind.
  void TearDown() override {
    for (const std::string& path : mirrors()) {
      EXPECT_TRUE(before_.contains(path)) << path << " is left behind";
    }
    ClusterTest::TearDown();
  }

  /// Directories in memory whose process is not there any more: runs beside this one have theirs.
  static std::set<std::string> mirrors() {
    std::set<std::string> out;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("sgactor-")) continue;
      const std::string pid = name.substr(8, name.find('-', 8) - 8);
      if (!std::filesystem::exists("/proc/" + pid)) out.insert(name);
    }
    return out;
  }
  [[nodiscard]] nlohmann::json state(const std::string& run_dir) const {
    return nlohmann::json::parse(read(run_dir + "/control/state.json"), nullptr, false);
  }
  [[nodiscard]] int64_t generation(const std::string& run_dir) const {
    const nlohmann::json s = state(run_dir);
    return s.is_object() ? s.value("generation", int64_t{0}) : 0;
  }
  /// Processes that host ranks, in the order of their workers.
  [[nodiscard]] std::vector<int> active(const std::string& run_dir) const {
    std::vector<int> out;
    const nlohmann::json s = state(run_dir);
    if (!s.is_object()) return out;
    for (const nlohmann::json& worker : s.at("workers")) {
      if (!worker.at("ranks").empty()) out.push_back(worker.at("pid").get<int>());
    }
    return out;
  }
  [[nodiscard]] std::vector<nlohmann::json> recoveries(const std::string& run_dir) const {
    std::vector<nlohmann::json> out;
    std::istringstream in(read(run_dir + "/recoveries.jsonl"));
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  /// Loss bits of a run that nothing happens to; `more` as for the run that is compared with it.
  [[nodiscard]] std::vector<std::string> undisturbed(const std::vector<std::string>& more = {}) {
    // The same for all tests: trained once.
    static std::map<std::vector<std::string>, std::vector<std::string>> known;
    std::vector<std::string> key = ranks_;
    key.insert(key.end(), more.begin(), more.end());
    if (const auto it = known.find(key); it != known.end()) return it->second;
    const ProgramResult result = run(train("quiet", more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(num_steps("quiet"), kSteps);
    EXPECT_TRUE(exists("quiet/recoveries.jsonl"));
    return known[key] = loss_bits("quiet");
  }
  /// The run is there, past `steps` steps, and goes on.
  [[nodiscard]] bool is_past(const std::string& run_dir, int steps) const {
    return wait_for([&] { return num_steps(run_dir) >= steps && !active(run_dir).empty(); });
  }
  void expect_whole(int pid, const std::string& run_dir, const std::vector<std::string>& bits) {
    const ProgramResult result = wait(pid);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_EQ(loss_bits(run_dir), bits);
    // The open step was never reported: a reported one is made again from its update's inputs.
    for (const nlohmann::json& line : recoveries(run_dir))
      EXPECT_LE(line["steps_again"], 1) << line;
    EXPECT_TRUE(processes(run_dir).empty());
  }

  /// Runs that are started meanwhile take injected faults.
  struct Injections {
    Injections() { setenv("SGACTOR_INJECT", "1", 1); }
    ~Injections() { unsetenv("SGACTOR_INJECT"); }
    Injections(const Injections&) = delete;
    Injections& operator=(const Injections&) = delete;
  };
  /// Asks a run for something, as `sgactor ctl` does, and waits until it has taken it.
  void request(const std::string& run_dir, const std::string& json) const {
    write("request", json);
    std::filesystem::rename(path("request"), path(run_dir + "/control/request.json"));
    EXPECT_TRUE(wait_for([&] { return !exists(run_dir + "/control/request.json"); }));
  }

 private:
  std::set<std::string> before_;
};

}  // namespace sgactor::tests
