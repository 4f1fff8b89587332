// sgactor chaos: faults against real processes, or, with --simulate, random schedules against the
// recovery protocol in virtual time.
#include "apps/sgactor/chaos_run.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/stop_signal.h"
#include "supervision/chaos/simulate.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <charconv>
#include <iostream>
#include <memory>

namespace sgactor::apps {
namespace {

struct ChaosOptions {
  bool simulate = false;
  ChaosRunOptions run;
  std::string seeds = "1..1000";
  int32_t max_faults = 5;
  int32_t max_workers = 64;
  std::vector<std::string> guards_off;
  bool json = false;
};

/// "A..B" or "A".
Status parse_seeds(std::string_view text, supervision::SimulationOptions& options) {
  const size_t dots = text.find("..");
  const std::string_view first = text.substr(0, dots);
  const std::string_view last = dots == std::string_view::npos ? first : text.substr(dots + 2);
  const auto number = [](std::string_view digits, uint64_t& out) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  if (number(first, options.first_seed) && number(last, options.last_seed) &&
      options.first_seed <= options.last_seed) {
    return {};
  }
  return invalid_argument(fmt::format("--seeds {}: expected A..B with A <= B, or one seed", text));
}

Status switch_off(const std::string& name, supervision::ProtocolGuards& guards) {
  std::string known;
  for (const supervision::GuardName& guard : supervision::kGuardNames) {
    if (guard.name == name) {
      guards.*guard.member = false;
      return {};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", guard.name);
  }
  return invalid_argument(fmt::format("--without {}: no such guard; known: {}", name, known));
}

void print_text(const supervision::SimulationSummary& s) {
  std::cout << fmt::format("seeds          {} in {:.1f} s, {} events\n", s.seeds, s.wall_seconds,
                           s.events)
            << fmt::format("faults         {}\n", s.faults)
            << fmt::format("recoveries     {} with {} adoptions, {} coordinator restarts\n",
                           s.recoveries, s.adoptions, s.coordinator_restarts)
            << fmt::format("re-executed    {}, {} of them by survivors\n", s.reexecuted,
                           s.survivors_reexecuted)
            << fmt::format("unsurvivable   {} (every copy of some state was lost)\n",
                           s.unsurvivable)
            << fmt::format("stuck          {}\n", s.stuck)
            << fmt::format("divergences    {}\n", s.divergences);
  for (const supervision::SimulationFailure& failure : s.failures) {
    std::cout << fmt::format("\nseed {}\n{}\n", failure.seed, failure.report);
  }
}

void print_json(const supervision::SimulationSummary& s) {
  nlohmann::ordered_json out;
  out["seeds"] = s.seeds;
  out["divergences"] = s.divergences;
  out["stuck"] = s.stuck;
  out["unsurvivable"] = s.unsurvivable;
  out["faults"] = s.faults;
  out["recoveries"] = s.recoveries;
  out["adoptions"] = s.adoptions;
  out["coordinator_restarts"] = s.coordinator_restarts;
  out["reexecuted"] = s.reexecuted;
  out["survivors_reexecuted"] = s.survivors_reexecuted;
  out["events"] = s.events;
  out["wall_seconds"] = s.wall_seconds;
  out["failed_seeds"] = nlohmann::ordered_json::array();
  for (const supervision::SimulationFailure& f : s.failures) out["failed_seeds"].push_back(f.seed);
  std::cout << out.dump() << "\n";
}

Result<int> chaos(const CommandLine& line, ChaosOptions options) {
  if (!options.simulate) {
    if (options.run.job.empty() || options.run.scenario.empty()) {
      return invalid_argument("chaos: expected JOB SCENARIO, or --simulate");
    }
    options.run.json = options.json;
    return run_chaos(line, options.run);
  }
  if (!options.run.job.empty()) {
    return invalid_argument("chaos --simulate takes no job and no scenario, got " +
                            options.run.job +
                            ": its clusters and faults come from --seeds, --max-workers and "
                            "--max-faults");
  }
  if (!line.overrides.empty()) {
    return invalid_argument("chaos --simulate takes no keys of a job file, got --" +
                            line.overrides[0].key);
  }
  supervision::SimulationOptions simulation;
  SGA_TRY(parse_seeds(options.seeds, simulation));
  for (const std::string& name : options.guards_off) {
    SGA_TRY(switch_off(name, simulation.guards));
  }
  simulation.max_faults = options.max_faults;
  simulation.max_workers = options.max_workers;
  const std::atomic<bool>& stop = install_stop_signals();
  simulation.stop = [&stop] { return stop.load(); };
  SGA_ASSIGN(const supervision::SimulationSummary summary, supervision::simulate_seeds(simulation));
  options.json ? print_json(summary) : print_text(summary);
  if (stop.load()) return kExitInterrupted;
  const bool good =
      summary.divergences == 0 && summary.stuck == 0 && summary.survivors_reexecuted == 0;
  return good ? kExitDone : kExitFailed;
}

}  // namespace

void add_chaos(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("chaos", "strike a run with faults and compare every bit");
  auto options = std::make_shared<ChaosOptions>();
  sub->add_option("job", options->run.job, "job file");
  sub->add_option("scenario", options->run.scenario, "what strikes whom, and when");
  sub->add_option("--seed", options->run.seed, "of what the scenario leaves open")
      ->capture_default_str();
  sub->add_option("--run-dir", options->run.run_dir, "default: runs/chaos-<job name>-<time>");
  sub->add_flag("--simulate", options->simulate, "in one process, in virtual time");
  sub->add_option("--seeds", options->seeds, "A..B: one random schedule a seed")
      ->capture_default_str();
  sub->add_option("--max-faults", options->max_faults, "in a schedule")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  sub->add_option("--max-workers", options->max_workers, "of a cluster")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  sub->add_option("--without", options->guards_off,
                  "switch a rule of the protocol off, to see that it is needed");
  sub->add_flag("--json", options->json, "one JSON object");
  sub->callback(
      [&line, options] { line.action = [&line, options] { return chaos(line, *options); }; });
}

}  // namespace sgactor::apps
