// gpu_step_bench DEVICE STEPS JOB [--section.key=value]...: training steps of a job through the
// actors from a fresh state. Prints a line a step, then one of JSON, in which stages of the start
// are seconds from the start until their end. With --log.trace_steps=N a Chrome trace of the first
// N steps is written to step_bench_trace.json.gz.
#include "actors/runtime/training.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/timed_state.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/log.h"
#include "graph/base/units.h"
#include "kernels/backend/module_loader.h"
#include "kernels/cpu/cpu_backend.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace sgactor;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Steps final : public actors::TrainingObserver {
 public:
  explicit Steps(Clock::time_point start) : start_(start) {}
  void on_step(const actors::StepReport& r) override {
    if (steps_.empty()) first_s_ = seconds_since(start_);
    steps_.push_back(r);
    std::printf("step %lld loss %.5f grad_norm %.4f %.1f ms, in kernels %.1f ms\n",
                static_cast<long long>(r.step), static_cast<double>(r.loss),
                static_cast<double>(r.grad_norm), r.step_ms, r.kernel_ms);
    std::fflush(stdout);
  }
  void on_validation(int64_t, double) override {}
  void on_checkpoint(int64_t, const std::string&, const transport::WriteStats&) override {}

  [[nodiscard]] double first_s() const { return first_s_; }
  /// Of the second half of the steps.
  void report(nlohmann::ordered_json& out, double flops_per_token) const {
    std::vector<double> ms;
    double kernels = 0;
    for (size_t i = steps_.size() / 2; i < steps_.size(); ++i) {
      ms.push_back(steps_[i].step_ms);
      kernels += steps_[i].kernel_ms;
    }
    const double wall = [&] {
      double sum = 0;
      for (double x : ms) sum += x;
      return sum;
    }();
    std::sort(ms.begin(), ms.end());
    const double median = ms[ms.size() / 2];
    const auto tokens = static_cast<double>(steps_.back().tokens);
    out["step_ms"] = median;
    out["tok_s"] = tokens / median * 1e3;
    out["tflops"] = tokens / median * 1e-9 * flops_per_token;
    out["outside_kernels"] = 1 - kernels / wall;
    out["loss"] = steps_.back().loss;
    out["loss_first"] = steps_.front().loss;
  }

 private:
  Clock::time_point start_;
  double first_s_ = 0;
  std::vector<actors::StepReport> steps_;
};

Result<int> bench(std::vector<std::string> args) {
  if (args.size() < 3) return invalid_argument("usage: gpu_step_bench DEVICE STEPS JOB [--key=v]");
  SGA_ASSIGN(const auto overrides, apps::split_overrides(args));
  kernels::BackendTable table;
  table.add({"cpu", kernels::create_cpu_backend, ""});
  table.add(
      kernels::lazy_module_backend("cuda", kernels::beside_program("../bin/sgactor_cuda.so")));
  const auto start = Clock::now();
  SGA_ASSIGN(apps::JobSpec job, apps::load_job(args[2], overrides));
  apps::choose_f8_layout(job, args[0]);
  SGA_ASSIGN(const apps::DeviceSpec device, apps::parse_devices(args[0]));
  log::init({.level = apps::log_level(job.log.level)});
  SGA_ASSIGN(const auto backend, apps::create_device(table, device));
  const double device_s = seconds_since(start);
  const apps::PlanCache cache =
      apps::open_plan_cache({}, backend->info().device, backend->info().fingerprint);
  SGA_ASSIGN(const apps::TrainingSetup setup,
             apps::set_up_training(job, apps::storage_model(*backend), &cache));
  const graph::Plan& plan = setup.training.compiled.plan;
  SGA_TRY(apps::check_memory(plan, *backend));
  std::printf("%s\nplan %s in %.1f s\n", backend->info().description.c_str(),
              format_bytes(plan.programs[0].arena_bytes).c_str(), seconds_since(start));
  const double planned_s = seconds_since(start);
  SGA_ASSIGN(const apps::Start fresh, apps::fresh_start(job, setup.training.config));
  const apps::TimedState state(*fresh.state);
  Steps steps(start);
  actors::TrainingSpec spec;
  spec.last_step = std::stoll(args[1]);
  spec.final_checkpoint = false;
  spec.scheduler_threads = 4;
  spec.trace_steps = job.log.trace_steps;
  if (spec.trace_steps > 0) spec.trace_file = "step_bench_trace.json.gz";
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.backend = backend.get();
  inputs.sampler = setup.data.sampler.get();
  inputs.initial_state = &state;
  inputs.observer = &steps;
  SGA_ASSIGN(const auto summary, actors::run_training(spec, inputs));
  nlohmann::ordered_json out;
  out["job"] = args[2];
  out["device"] = backend->info().description;
  out["params"] = plan.num_parameters;
  steps.report(out, plan.flops_per_token);
  const auto since_start = [&](Clock::time_point t) {
    return std::chrono::duration<double>(t - start).count();
  };
  out["device_s"] = device_s;
  out["planned_s"] = planned_s;
  out["plan_from_cache"] = setup.training.from_cache;
  out["compiled_s"] = since_start(state.asked());
  out["state_loaded_s"] = since_start(state.answered());
  out["first_step_s"] = steps.first_s();
  const kernels::LaunchStats launches = backend->launch_stats();
  out["launches_plain"] = launches.plain;
  out["launches_replayed"] = launches.replayed;
  out["recorded_graphs"] = launches.graphs;
  out["peak_gib"] = static_cast<double>(backend->allocation_stats().peak_bytes) / 0x1p30;
  out["allocations_after_start"] =
      summary.allocations_at_end.num_allocations - summary.allocations_at_start.num_allocations;
  std::cout << out.dump() << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto result = bench(std::vector<std::string>(argv + 1, argv + argc));
  if (result.ok()) return result.value();
  std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
  return 1;
}
