// sgactor ctl: looks at a run that goes on in other processes, and changes it.
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/profile_request.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/stop_signal.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPollMs = 10;
constexpr int64_t kMostWorkers = 65536;
constexpr int64_t kDefaultProfileSteps = 8;

struct CtlOptions {
  std::string run;
  std::string action;
  std::string target;   ///< number of workers, or host
  int64_t workers = 0;  ///< of target, for resize
  int64_t timeout_s = 60;
};

Result<Json> read_state(const RunDirectory& run) {
  std::ostringstream text;
  text << std::ifstream(run.state(), std::ios::binary).rdbuf();
  Json state = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (state.is_object() && state.contains("workers")) return state;
  return invalid_argument(run.path + ": no run of several processes goes on here");
}

int64_t num_active(const Json& state) {
  int64_t out = 0;
  for (const Json& worker : state["workers"]) out += worker.value("ranks", Json()).empty() ? 0 : 1;
  return out;
}

/// The newest hang of the run, if there was one.
void print_hang(const RunDirectory& run) {
  std::ostringstream text;
  text << std::ifstream(run.hang_report(), std::ios::binary).rdbuf();
  const Json hang = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!hang.is_object()) return;
  std::printf("hang        at step %lld, %s (%s); see %s\n",
              static_cast<long long>(hang.value("step", int64_t{0}) + 1),
              hang.value("fault", "").c_str(), hang.value("culprit", "").c_str(),
              run.hang_report().c_str());
}

Result<int> status(const CtlOptions& options) {
  SGA_ASSIGN(const Json state, read_state({options.run}));
  std::printf("generation  %lld, %lld steps committed when it began\n",
              static_cast<long long>(state.value("generation", int64_t{0})),
              static_cast<long long>(state.value("committed", int64_t{0})));
  for (const Json& worker : state["workers"]) {
    const Json ranks = worker.value("ranks", Json::array());
    std::printf("worker %-4lld  pid %lld on %s (node %lld), %s\n",
                static_cast<long long>(worker.value("index", int64_t{0})),
                static_cast<long long>(worker.value("pid", int64_t{0})),
                worker.value("host", "").c_str(),
                static_cast<long long>(worker.value("node", int64_t{0})),
                ranks.empty() ? "spare" : ("ranks " + ranks.dump()).c_str());
  }
  print_hang({options.run});
  return kExitDone;
}

/// Leaves a request for the run and waits until `done` says so of its state.
Result<int> ask(const CtlOptions& options, const Json& request,
                const std::function<bool(const Json&)>& done) {
  const RunDirectory run{options.run};
  SGA_TRY(transport::write_file_atomic(run.request(), request.dump() + "\n"));
  const std::atomic<bool>& stop = install_stop_signals();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_s);
  while (!stop.load() && std::chrono::steady_clock::now() < deadline) {
    const auto now = read_state(run);
    if (!now.ok()) return now.status().with_context("the run has ended");
    if (done(*now)) return kExitDone;
    ::poll(nullptr, 0, kPollMs);
  }
  std::fprintf(stderr, "sgactor: the run has not changed within %lld s\n",
               static_cast<long long>(options.timeout_s));
  return kExitFailed;
}

Result<int> resize(const CtlOptions& options) {
  const RunDirectory run{options.run};
  SGA_ASSIGN(const Json before, read_state(run));
  const auto ranks = before.value("num_ranks", int64_t{1});
  if (options.workers > ranks) {
    return invalid_argument(fmt::format(
        "resize {}: the run has {} logical rank{}, a worker hosts at least one; expected 1 to {}",
        options.workers, ranks, ranks == 1 ? "" : "s", ranks));
  }
  const Json request = {{"resize", options.workers}};
  return ask(options, request, [&](const Json& state) {
    if (num_active(state) != options.workers) return false;
    std::printf("%lld workers\n", static_cast<long long>(options.workers));
    return true;
  });
}

/// Hosts go by their name, or one of their nodes by its process id: several may be on one host.
bool is_on(const Json& worker, const std::string& host) {
  return worker.value("host", "") == host ||
         std::to_string(worker.value("node", int64_t{0})) == host;
}

Result<int> drain(const CtlOptions& options) {
  SGA_ASSIGN(const Json before, read_state({options.run}));
  int64_t there = 0;
  const auto total = static_cast<int64_t>(before["workers"].size());
  for (const Json& worker : before["workers"]) there += is_on(worker, options.target) ? 1 : 0;
  if (there == 0) {
    return invalid_argument("drain " + options.target + ": no worker of the run is there");
  }
  if (there == total) {
    return invalid_argument("drain " + options.target + ": no worker would be left elsewhere");
  }
  const Json request = {{"drain", options.target}};
  return ask(options, request, [&](const Json& state) {
    int64_t elsewhere = 0;
    for (const Json& worker : state["workers"]) elsewhere += is_on(worker, options.target) ? 0 : 1;
    if (elsewhere != static_cast<int64_t>(state["workers"].size())) return false;
    std::printf("%s is drained; %lld workers are left, %lld of them with ranks\n",
                options.target.c_str(), static_cast<long long>(elsewhere),
                static_cast<long long>(num_active(state)));
    return true;
  });
}

/// What tells one content of a file from another, without reading it; 0: there is none.
int64_t write_time(const std::string& file) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(file, error);
  return error ? 0 : static_cast<int64_t>(time.time_since_epoch().count());
}

Result<int> profile(const CtlOptions& options) {
  const RunDirectory run{options.run};
  SGA_TRY(read_state(run).status());
  int64_t steps = kDefaultProfileSteps;
  const std::string& text = options.target;
  if (!text.empty()) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, steps);
    if (parsed.ec != std::errc() || parsed.ptr != end || steps < 1 || steps > kMostProfileSteps) {
      return invalid_argument(fmt::format(
          "ctl RUN profile: expected a number of steps from 1 to {}", kMostProfileSteps));
    }
  }
  const int64_t before = write_time(run.profile());
  return ask(options, {{"profile", steps}}, [&](const Json&) {
    const int64_t now = write_time(run.profile());
    if (now == 0 || now == before) return false;
    std::printf(
        "the times of %lld steps are in %s; the next plan goes by them with "
        "--profile.use=%s\n",
        static_cast<long long>(steps), run.profile().c_str(), run.profile().c_str());
    return true;
  });
}

Result<int> ctl(CtlOptions options) {
  if (options.action == "status") {
    if (options.target.empty()) return status(options);
    return invalid_argument("ctl RUN status: takes no number of workers");
  }
  if (options.action == "profile") return profile(options);
  if (options.action == "drain") {
    if (!options.target.empty()) return drain(options);
    return invalid_argument("ctl RUN drain: expected a host, or the process id of a node");
  }
  const std::string& text = options.target;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options.workers);
  const bool good = error == std::errc() && end == text.data() + text.size() &&
                    options.workers >= 1 && options.workers <= kMostWorkers;
  if (good) return resize(options);
  return invalid_argument(
      fmt::format("ctl RUN resize: expected a number of workers from 1 to {}", kMostWorkers));
}

}  // namespace

void add_ctl(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("ctl", "look at a run that goes on, and change it");
  auto options = std::make_shared<CtlOptions>();
  sub->add_option("run", options->run, "its run directory")->required();
  sub->add_option(
         "action", options->action,
         "status: who hosts what; resize: deal the ranks over that many workers; drain: leave "
         "a host; profile: record the times of the next steps into RUN/profile.json")
      ->required()
      ->check(CLI::IsMember({"status", "resize", "drain", "profile"}));
  sub->add_option("target", options->target,
                  "for resize: processes that host ranks; for drain: a host's name, or the process "
                  "id of its node; for profile: steps, 8 if not given");
  sub->add_option("--timeout", options->timeout_s, "seconds to wait for it")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  sub->callback([&line, options] { line.action = [options] { return ctl(*options); }; });
}

}  // namespace sgactor::apps
