// sgactor ctl: looks at a run that goes on in other processes, and changes it.
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/stop_signal.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPollMs = 10;

struct CtlOptions {
  std::string run;
  std::string action;
  int64_t workers = 0;
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

Result<int> status(const CtlOptions& options) {
  SGA_ASSIGN(const Json state, read_state({options.run}));
  std::printf("generation  %lld, %lld steps committed when it began\n",
              static_cast<long long>(state.value("generation", int64_t{0})),
              static_cast<long long>(state.value("committed", int64_t{0})));
  for (const Json& worker : state["workers"]) {
    const Json ranks = worker.value("ranks", Json::array());
    std::printf("worker %-4lld  pid %lld on %s, %s\n",
                static_cast<long long>(worker.value("index", int64_t{0})),
                static_cast<long long>(worker.value("pid", int64_t{0})),
                worker.value("host", "").c_str(),
                ranks.empty() ? "spare" : ("ranks " + ranks.dump()).c_str());
  }
  return kExitDone;
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
  SGA_TRY(transport::write_file_atomic(run.request(), request.dump() + "\n"));
  const std::atomic<bool>& stop = install_stop_signals();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_s);
  while (!stop.load() && std::chrono::steady_clock::now() < deadline) {
    const auto now = read_state(run);
    if (!now.ok()) return now.status().with_context("the run has ended");
    if (num_active(*now) == options.workers) {
      std::printf("%lld workers\n", static_cast<long long>(options.workers));
      return kExitDone;
    }
    ::poll(nullptr, 0, kPollMs);
  }
  std::fprintf(stderr, "sgactor: the run has not changed within %lld s\n",
               static_cast<long long>(options.timeout_s));
  return kExitFailed;
}

Result<int> ctl(const CtlOptions& options) {
  if (options.action == "status") {
    if (options.workers == 0) return status(options);
    return invalid_argument("ctl RUN status: takes no number of workers");
  }
  if (options.workers > 0) return resize(options);
  return invalid_argument("ctl RUN resize: expected a number of workers");
}

}  // namespace

void add_ctl(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("ctl", "look at a run that goes on, and change it");
  auto options = std::make_shared<CtlOptions>();
  sub->add_option("run", options->run, "its run directory")->required();
  sub->add_option("action", options->action,
                  "status: who hosts what; resize: deal the ranks over WORKERS workers")
      ->required()
      ->check(CLI::IsMember({"status", "resize"}));
  sub->add_option("workers", options->workers, "for resize: processes that host ranks")
      ->check(CLI::Range(1, 65536));
  sub->add_option("--timeout", options->timeout_s, "seconds to wait for it")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  sub->callback([&line, options] { line.action = [options] { return ctl(*options); }; });
}

}  // namespace sgactor::apps
