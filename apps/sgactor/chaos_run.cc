// sgactor chaos JOB SCENARIO: real processes, real signals, and a comparison of every bit.
#include "apps/sgactor/chaos_run.h"

#include "actors/runtime/node_children.h"
#include "apps/sgactor/chaos_scenario.h"
#include "apps/sgactor/chaos_striker.h"
#include "apps/sgactor/cluster_options.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/fault_injection.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/stop_signal.h"
#include "graph/base/hash.h"
#include "transport/storage/checkpoint.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kPollMs = 2;
constexpr int32_t kTrainTag = 0;

std::string read_text(const std::string& file) {
  std::ostringstream out;
  out << std::ifstream(file, std::ios::binary).rdbuf();
  return out.str();
}

std::vector<Json> read_lines(const std::string& file) {
  std::vector<Json> out;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // without a newline: not finished
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) out.push_back(std::move(json));
  }
  return out;
}

/// What a run computed, for comparison.
struct Facts {
  std::map<int64_t, std::string> loss_bits;
  std::map<int64_t, std::string> samples;
  uint64_t state_hash = 0;
};

Result<Facts> facts_of(const RunDirectory& run) {
  Facts out;
  for (const Json& line : read_lines(run.metrics())) {
    // A second line of a step would hide the first.
    if (!out.loss_bits.emplace(line.value("step", 0), line.value("loss_bits", "")).second) {
      return corruption(run.metrics() + ": a step has two lines");
    }
  }
  for (const Json& line : read_lines(run.audit())) {
    if (line.value("what", "") == "commit") {
      out.samples[line.value("step", 0)] = line.value("sample_hash", "");
    }
  }
  SGA_ASSIGN(const std::string path, transport::newest_checkpoint(run.checkpoints(), nullptr));
  SGA_ASSIGN(const auto checkpoint, transport::Checkpoint::open(path));
  for (const transport::TensorRecord& tensor : checkpoint->info().tensors) {
    out.state_hash = mix64(out.state_hash, hash64(tensor.name));
    const auto mix = [&](const std::vector<Hash128>& chunks) {
      for (const Hash128& c : chunks) out.state_hash = mix64(mix64(out.state_hash, c.low), c.high);
    };
    mix(tensor.chunks);
    for (const transport::PieceRecord& piece : tensor.pieces) mix(piece.chunks);
  }
  return out;
}

/// Starts the nodes of a scenario but the run's own. False while the run has no token yet.
Result<bool> join_nodes(actors::NodeChildren& children, const RunDirectory& run,
                        const ChaosScenario& scenario) {
  const std::string token = fs::absolute(run.path).string() + "/control/token";
  std::error_code error;
  if (!fs::exists(token, error)) return false;
  const int64_t total = scenario.workers + scenario.spares;
  const std::vector<std::string> words = {
      program_file(), "node", "--token=" + token, "--devices=cpu:1",
      fmt::format("--workers={}", (total + scenario.nodes - 1) / scenario.nodes)};
  for (int64_t i = 1; i < scenario.nodes; ++i) {
    SGA_TRY(children.start(words, kTrainTag + 1).status());
  }
  return true;
}

/// Whether the scenario has killed the coordinator once more than it was started again.
bool was_meant(const actors::NodeChildren::Exit& exit, const ChaosStriker* striker,
               int64_t restarts) {
  if (striker == nullptr || !WIFSIGNALED(exit.status) || WTERMSIG(exit.status) != SIGKILL) {
    return false;
  }
  const auto& strikes = striker->strikes();
  return restarts <
         std::count_if(
             strikes.begin(), strikes.end(),
             [](const Strike& s) { return s.fault.kind == ChaosFault::Kind::kKillCoordinator; });
}

/// Trains in a process of its own; `striker` may be null. Errors: kCancelled; how it ended.
Status train_once(const std::string& job, const RunDirectory& run, const ChaosScenario& scenario,
                  ChaosStriker* striker, const std::atomic<bool>& stop) {
  actors::NodeChildren children;
  std::vector<std::string> words = {program_file(),
                                    "train",
                                    job,
                                    "--run-dir=" + run.path,
                                    fmt::format("--workers={}", scenario.workers),
                                    fmt::format("--spares={}", striker ? scenario.spares : 0)};
  const int64_t nodes = striker != nullptr ? scenario.nodes : 1;
  if (nodes > 1) words.push_back(fmt::format("--nodes={}", nodes));
  SGA_TRY(children.start(words, kTrainTag).status());
  bool joined = nodes == 1;
  int64_t restarts = 0;
  while (true) {
    for (const auto& exit : children.take_exits()) {
      if (exit.tag != kTrainTag) continue;  // a node that was struck
      if (exit.clean()) return {};
      if (!was_meant(exit, striker, restarts)) {
        return internal_error(fmt::format("{}: {}", run.path, exit.how));
      }
      if (restarts++ == 0) words.push_back("--resume");
      SGA_TRY(children.start(words, kTrainTag).status());
    }
    if (stop.load()) {
      children.signal_all(SIGTERM);
      children.end(10'000);
      return make_status(Code::kCancelled, "interrupted");
    }
    if (!joined) {
      SGA_ASSIGN(joined, join_nodes(children, run, scenario));
    }
    if (striker != nullptr) striker->look();
    std::vector<pollfd> fds;
    for (const int fd : children.fds()) fds.push_back({fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), striker != nullptr ? kPollMs : 100);
  }
}

template <class Map>
int64_t num_different(const Map& a, const Map& b) {
  int64_t out = 0;
  for (const auto& [step, value] : a) {
    const auto it = b.find(step);
    if (it == b.end() || it->second != value) ++out;
  }
  return out + static_cast<int64_t>(b.size() > a.size() ? b.size() - a.size() : 0);
}

/// From the fault's instant to the state restored, of each strike that a recovery followed.
std::vector<double> recovery_times(const std::vector<Json>& recoveries,
                                   const std::vector<Strike>& strikes) {
  std::vector<double> out;
  for (const Json& r : recoveries) {
    const double detected = r.value("detected_unix", 0.0);
    const Strike* cause = nullptr;
    for (const Strike& strike : strikes) {
      if (is_trap(strike.fault)) continue;  // nobody saw the moment
      const bool hers =
          r.value("culprit", "").find(fmt::format("(pid {}", strike.pid)) != std::string::npos;
      if (hers) cause = &strike;
    }
    if (cause == nullptr || !r.at("restored_ms").is_number()) continue;
    out.push_back((detected - cause->unix_time) * 1e3 + r.at("restored_ms").get<double>());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Json report(const Facts& quiet, const Facts& struck, const std::vector<Json>& recoveries,
            const std::vector<Strike>& strikes, int64_t num_ranks, int64_t num_faults) {
  Json out;
  const int64_t losses = num_different(quiet.loss_bits, struck.loss_bits);
  const int64_t samples = num_different(quiet.samples, struck.samples);
  const bool state = quiet.state_hash == struck.state_hash;
  out["divergences"] = losses + samples + (state ? 0 : 1);
  out["steps"] = quiet.loss_bits.size();
  out["steps_of_other_loss_bits"] = losses;
  out["steps_of_other_samples"] = samples;
  out["final_state_hash"] = {hex64(quiet.state_hash), hex64(struck.state_hash)};
  out["faults_planned"] = num_faults;
  out["faults"] = Json::array();
  for (const Strike& s : strikes) {
    out["faults"].push_back({{"kind", to_string(s.fault.kind)}, {"step", s.step}, {"pid", s.pid}});
  }
  out["recoveries"] = recoveries;
  const std::vector<double> times = recovery_times(recoveries, strikes);
  Json ms;
  ms["median"] = times.empty() ? Json() : Json(times[times.size() / 2]);
  ms["max"] = times.empty() ? Json() : Json(times.back());
  out["recovery_ms"] = std::move(ms);
  int64_t again = 0;
  for (const Json& r : recoveries) {
    // Launches, counted where they happen; a record without the count is of ranks that all began
    // again, and counts steps.
    const int64_t all =
        r.value("steps_again", int64_t{0}) * (num_ranks - r.value("ranks_moved", int64_t{0}));
    again += r.value("survivors_reexecuted", all);
  }
  out["survivors_reexecuted"] = again;
  return out;
}

void print_text(const Json& r) {
  std::printf("faults       %zu of %lld, %zu recoveries\n", r["faults"].size(),
              r["faults_planned"].get<long long>(), r["recoveries"].size());
  if (r["recovery_ms"]["median"].is_number()) {
    std::printf(
        "recovery     median %.0f ms, worst %.0f ms, from the signal to the state restored\n",
        r["recovery_ms"]["median"].get<double>(), r["recovery_ms"]["max"].get<double>());
  }
  std::printf("re-executed  %lld launches of ranks that did not fail\n",
              r["survivors_reexecuted"].get<long long>());
  std::printf("divergences  %lld in %zu steps; state %s, undisturbed %s\n",
              r["divergences"].get<long long>(), r["steps"].get<size_t>(),
              r["final_state_hash"][1].get<std::string>().c_str(),
              r["final_state_hash"][0].get<std::string>().c_str());
}

}  // namespace

Result<int> run_chaos(const CommandLine& line, const ChaosRunOptions& options) {
  SGA_ASSIGN(JobSpec job, load_job(options.job, line.overrides));
  SGA_TRY(check_supported(job));
  SGA_TRY(check_text_file(options.scenario));
  std::error_code error;
  if (!fs::exists(options.scenario, error)) {
    return invalid_argument(options.scenario + ": there is no such file");
  }
  const ChaosLimits limits{num_logical_ranks(job), job.training.steps,
                           job.resilience.verify_interval > 0};
  SGA_ASSIGN(const ChaosScenario scenario,
             parse_scenario(read_text(options.scenario), options.scenario, limits, options.seed));
  const std::string base = options.run_dir.empty()
                               ? default_run_path("chaos-" + job.name, std::time(nullptr))
                               : options.run_dir;
  SGA_TRY(check_new_run(base));
  fs::create_directories(base, error);
  if (error) return invalid_argument("--run-dir " + base + ": cannot create: " + error.message());
  // Standard output is the report's.
  job.log.interval = std::max(job.log.interval, job.training.steps);
  job.log.sample_tokens = 0;
  const auto has = [&](ChaosFault::Kind kind) {
    return std::any_of(scenario.faults.begin(), scenario.faults.end(),
                       [kind](const ChaosFault& f) { return f.kind == kind; });
  };
  // Workers of one host meet in memory, which "auto" trusts.
  if (has(ChaosFault::Kind::kCorruptFrame)) job.resilience.check_frames = "on";
  if (has(ChaosFault::Kind::kBitFlip) && job.resilience.verify_interval == 0) {
    job.resilience.verify_interval = 1;
    SGA_TRY(check_combinations(job));
  }
  const std::string job_file = base + "/job.toml";
  SGA_TRY(transport::write_file_atomic(job_file, write_job(job, false)));
  const std::atomic<bool>& stop = install_stop_signals();
  const RunDirectory quiet{base + "/undisturbed"};
  const RunDirectory struck{base + "/disturbed"};
  ChaosStriker striker(scenario, struck);
  Status status = train_once(job_file, quiet, scenario, nullptr, stop);
  // Before any thread of this process is started, and only for the run that is struck.
  ::setenv(kInjectVariable, "1", /*overwrite=*/1);
  if (status.ok()) status = train_once(job_file, struck, scenario, &striker, stop);
  if (status.code() == Code::kCancelled) return kExitInterrupted;
  if (!status.ok()) {
    std::fprintf(stderr, "sgactor: %s\n", status.message().c_str());
    return kExitFailed;
  }
  SGA_ASSIGN(const Facts a, facts_of(quiet));
  SGA_ASSIGN(const Facts b, facts_of(struck));
  const Json result = report(a, b, read_lines(struck.recoveries()), striker.strikes(),
                             limits.num_ranks, static_cast<int64_t>(scenario.faults.size()));
  options.json ? (void)std::printf("%s\n", result.dump().c_str()) : print_text(result);
  const size_t num_struck = striker.strikes().size();
  const bool all_struck = num_struck == scenario.faults.size();
  if (!all_struck) {
    std::fprintf(stderr, "sgactor: fault %zu (%s) never struck: %s\n", num_struck + 1,
                 std::string(to_string(scenario.faults[num_struck].kind)).c_str(),
                 striker.why_not().c_str());
  }
  return result["divergences"] == 0 && all_struck ? kExitDone : kExitFailed;
}

}  // namespace sgactor::apps
