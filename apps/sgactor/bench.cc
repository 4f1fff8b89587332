// sgactor bench: how fast the actors and a training step are on this machine.
#include "actors/runtime/actor_bench.h"
#include "actors/runtime/training.h"
#include "apps/sgactor/bench_collectives.h"
#include "apps/sgactor/bench_kernels.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/run_report.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/strategy_choice.h"
#include "apps/sgactor/timed_state.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/units.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <vector>

namespace sgactor::apps {
namespace {

struct BenchOptions {
  std::string job;
  std::string devices = "cpu";
  int64_t steps = 10;
  int32_t actors = 64;
  int64_t messages = 20000;
  int32_t window = 64;
  int32_t threads = 2;
  bool json = false;
};

/// Keeps the steps' figures; the first step touches memory for the first time and is left out.
class StepTimes : public actors::TrainingObserver {
 public:
  void on_step(const actors::StepReport& report) override {
    if (steps_.empty()) first_ = TimedState::Clock::now();
    steps_.push_back(report);
  }
  void on_validation(int64_t, double) override {}
  void on_checkpoint(int64_t, const std::string&, const transport::WriteStats&) override {}

  /// When the first step was done.
  [[nodiscard]] TimedState::Clock::time_point first() const { return first_; }

  struct Sums {
    double wall_ms = 0, kernel_ms = 0, median_ms = 0;
    int64_t tokens = 0;
  };
  [[nodiscard]] Sums sums() const {
    Sums s;
    std::vector<double> times;
    for (size_t i = 1; i < steps_.size(); ++i) {
      s.wall_ms += steps_[i].step_ms;
      s.kernel_ms += steps_[i].kernel_ms;
      s.tokens += steps_[i].tokens;
      times.push_back(steps_[i].step_ms);
    }
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2),
                     times.end());
    s.median_ms = times[times.size() / 2];
    return s;
  }

 private:
  TimedState::Clock::time_point first_;
  std::vector<actors::StepReport> steps_;
};

/// Seconds from the command's start until each stage of a start was done.
struct StartTimes {
  double device_s = 0, planned_s = 0, compiled_s = 0, state_s = 0, first_step_s = 0;
};

void print_step(const BenchOptions& options, const graph::Plan& plan,
                const kernels::Backend& backend, const StepTimes::Sums& s,
                const actors::TrainingSummary& summary, const StartTimes& start) {
  const kernels::DeviceInfo& device = backend.info();
  const kernels::LaunchStats launches = backend.launch_stats();
  const double outside = std::clamp(1.0 - s.kernel_ms / s.wall_ms, 0.0, 1.0);
  const double rate = static_cast<double>(s.tokens) / (s.wall_ms * 1e-3);
  if (options.json) {
    nlohmann::ordered_json out;
    out["device"] = device.description;
    out["params"] = plan.num_parameters;
    out["steps"] = options.steps;
    out["step_ms_median"] = s.median_ms;
    out["tok_s"] = rate;
    out["tflops"] = rate * plan.flops_per_token * 1e-12;
    out["share_outside_kernels"] = outside;
    out["messages"] = summary.num_messages;
    out["allocations_after_start"] =
        summary.allocations_at_end.num_allocations - summary.allocations_at_start.num_allocations;
    out["launches_plain"] = launches.plain;
    out["launches_replayed"] = launches.replayed;
    out["recorded_graphs"] = launches.graphs;
    out["start_s"] = {{"device", start.device_s},
                      {"planned", start.planned_s},
                      {"compiled", start.compiled_s},
                      {"state", start.state_s},
                      {"first_step", start.first_step_s}};
    std::cout << out.dump() << "\n";
    return;
  }
  std::cout << fmt::format(
      "device                 {}\nparameters             {}\nsteps                  {} and one to "
      "warm up\nstep, median           {}\ntokens/s               {}\nTFLOP/s                "
      "{:.3f}\noutside kernels        {:.2f} % of wall time\nmessages a step        {}\n",
      device.description, format_count(static_cast<double>(plan.num_parameters)), options.steps,
      format_seconds(s.median_ms * 1e-3), format_count(rate), rate * plan.flops_per_token * 1e-12,
      outside * 100, summary.num_messages / (options.steps + 1));
  if (launches.replayed > 0) {
    std::cout << fmt::format("launches               {} replayed from {} graphs, {} plain\n",
                             launches.replayed, launches.graphs, launches.plain);
  }
  std::cout << fmt::format(
      "start                  device {}, planned {}, compiled {}, state {}, first step {}\n",
      format_seconds(start.device_s), format_seconds(start.planned_s),
      format_seconds(start.compiled_s), format_seconds(start.state_s),
      format_seconds(start.first_step_s));
}

Result<int> bench_step(const CommandLine& line, const BenchOptions& options) {
  const auto began = TimedState::Clock::now();
  const auto since_began = [&](TimedState::Clock::time_point t) {
    return std::chrono::duration<double>(t - began).count();
  };
  StartTimes at;
  SGA_ASSIGN(JobSpec job, load_job(options.job, line.overrides));
  SGA_TRY(choose_strategy(*line.strategies, job));
  choose_f8_layout(job, options.devices);
  SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
  SGA_ASSIGN(const auto backend, create_device(*line.backends, device));
  at.device_s = since_began(TimedState::Clock::now());
  SGA_ASSIGN(const TrainingSetup setup, set_up_training(job, storage_model(*backend)));
  at.planned_s = since_began(TimedState::Clock::now());
  const graph::Plan& plan = setup.training.compiled.plan;
  SGA_TRY(check_memory(plan, *backend));
  SGA_ASSIGN(const Start start, fresh_start(job, setup.training.config));
  const TimedState state(*start.state);
  StepTimes times;
  actors::TrainingSpec spec;
  spec.last_step = options.steps + 1;
  spec.final_checkpoint = false;
  spec.scheduler_threads = std::max(2, std::min(backend->info().num_threads, 8));
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.backend = backend.get();
  inputs.sampler = setup.data.sampler.get();
  inputs.initial_state = &state;
  inputs.observer = &times;
  SGA_ASSIGN(const auto summary, actors::run_training(spec, inputs));
  at.compiled_s = since_began(state.asked());
  at.state_s = since_began(state.answered());
  at.first_step_s = since_began(times.first());
  print_step(options, plan, *backend, times.sums(), summary, at);
  return kExitDone;
}

Result<int> bench_actors(const CommandLine& line, const BenchOptions& options) {
  SGA_ASSIGN(const auto symbolic, create_device(*line.backends, {"symbolic", {}}));
  SGA_ASSIGN(const actors::ActorBenchResult r,
             actors::bench_actor_chain(*symbolic, options.actors, options.messages, options.window,
                                       options.threads));
  if (options.json) {
    nlohmann::ordered_json out;
    out["actors"] = r.num_actors;
    out["handles"] = r.num_handles;
    out["messages"] = r.num_messages;
    out["seconds"] = r.seconds;
    out["handles_s"] = r.handles_per_second;
    out["messages_s"] = r.messages_per_second;
    std::cout << out.dump() << "\n";
    return kExitDone;
  }
  std::cout << fmt::format(
      "chain       {} subgraph actors, {} tensors under way, {} threads\nhandles     {}, {} a "
      "second\nmessages    {}, {} a second\ntook        {}\n",
      r.num_actors, options.window, options.threads, r.num_handles,
      format_count(r.handles_per_second), r.num_messages, format_count(r.messages_per_second),
      format_seconds(r.seconds));
  return kExitDone;
}

}  // namespace

void add_bench(CLI::App& app, CommandLine& line) {
  CLI::App* bench = app.add_subcommand("bench", "measure this machine");
  bench->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* step = bench->add_subcommand("step", "training steps of a job; writes nothing");
  step->add_option("job", options->job, "job file")->required();
  step->add_option("--steps", options->steps, "steps measured")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  step->add_option("--devices", options->devices, "as for train")->capture_default_str();
  step->add_flag("--json", options->json, "one JSON object");
  CLI::App* chain =
      bench->add_subcommand("actors", "messages a second through a chain of subgraph actors");
  chain->add_option("--actors", options->actors, "length of the chain")->capture_default_str();
  chain->add_option("--messages", options->messages, "tensors sent through")->capture_default_str();
  chain->add_option("--window", options->window, "tensors under way")->capture_default_str();
  chain->add_option("--threads", options->threads, "of the actor scheduler")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  chain->add_flag("--json", options->json, "one JSON object");
  add_bench_collectives(*bench, line);
  add_bench_kernels(*bench, line);
  chain->callback([&line, options] {
    line.action = [&line, options] { return bench_actors(line, *options); };
  });
  step->callback(
      [&line, options] { line.action = [&line, options] { return bench_step(line, *options); }; });
}

}  // namespace sgactor::apps
