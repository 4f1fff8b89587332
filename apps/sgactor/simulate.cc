// sgactor simulate: how a step of a job would run on a cluster, by a cost model, and what faults
// would do to the run.
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/simulate_faults.h"
#include "apps/sgactor/strategy_choice.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/units.h"
#include "graph/compiler/simulate_step.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <optional>

namespace sgactor::apps {
namespace {

struct SimulateOptions {
  std::string job;
  std::string topology;
  std::string trace;
  bool json = false;
  FaultOptions faults;
  CacheOptions cache;
};

Result<graph::ClusterSpec> read_cluster(const std::string& file) {
  SGA_ASSIGN(const std::string text, transport::read_file(file));
  auto cluster = graph::parse_cluster(text);
  if (!cluster.ok()) return cluster.status().with_context(file);
  return cluster;
}

/// Largest arena of a stage, which must fit a device.
int64_t arena_bytes(const graph::Plan& plan) {
  int64_t most = 0;
  for (const graph::RankProgram& p : plan.programs) most = std::max(most, p.arena_bytes);
  return most;
}

/// Every logical rank has a device of its own.
Status check_devices(const JobSpec& job, const graph::Plan& plan, const graph::ClusterSpec& cluster,
                     const std::string& file) {
  const int64_t devices = cluster.num_devices();
  if (plan.mesh.num_ranks() <= devices) return {};
  const int64_t a_replica = int64_t{plan.mesh.pp} * plan.mesh.tp;
  const bool by_dp = a_replica <= devices;
  const bool logical = job.parallelism.logical_data_parallel > 0;
  const char* key =
      by_dp ? logical ? "parallelism.logical_data_parallel" : "parallelism.data_parallel_degree"
            : "parallelism.pipeline_parallel_degree";
  const int64_t most = by_dp ? devices / a_replica : devices / plan.mesh.tp;
  return invalid_argument(fmt::format(
      "{}: pp {} x dp {} x tp {} are {} logical ranks, and {} has {} devices; expected {}",
      job.at(key), plan.mesh.pp, plan.mesh.dp, plan.mesh.tp, plan.mesh.num_ranks(), file, devices,
      most > 0 ? fmt::format("{} or fewer", most)
               : "a smaller parallelism.tensor_parallel_degree too"));
}

nlohmann::ordered_json report(const JobSpec& job, const graph::Plan& plan,
                              const graph::ClusterSpec& cluster, const graph::SimulatedStep& step) {
  const auto tokens = static_cast<double>(job.training.global_batch_size * job.training.seq_len);
  const double devices = plan.mesh.num_ranks();
  const double flops = plan.flops_per_token * tokens;
  const graph::DeviceSpec& device = cluster.hosts[0].devices[0];
  return {
      {"devices", plan.mesh.num_ranks()},
      {"device", device.kind},
      {"step_ms", step.step_s * 1e3},
      {"tokens_per_s", tokens / step.step_s},
      {"model_flops_utilization", flops / step.step_s / devices / device.flops_per_s},
      {"compute_ms", step.compute_s * 1e3},
      {"communication_ms", step.communication_s * 1e3},
      {"overlap", step.overlap},
      {"arena_bytes", arena_bytes(plan)},
      {"fits", static_cast<double>(arena_bytes(plan)) <= static_cast<double>(device.memory_bytes)}};
}

/// Anything but equal states would be a fault of ours.
int exit_code(const std::optional<SimulatedFaults>& faults) {
  const bool broken = faults && faults->protocol &&
                      (faults->protocol->outcome != supervision::SimOutcome::kEqual ||
                       faults->protocol->survivors_reexecuted > 0);
  return broken ? kExitFailed : kExitDone;
}

Result<int> simulate(const CommandLine& line, const SimulateOptions& options) {
  SGA_ASSIGN(JobSpec job, load_job(options.job, line.overrides));
  SGA_TRY(choose_strategy(*line.strategies, job));
  if (job.compile.topology.empty()) job.compile.topology = options.topology;
  SGA_ASSIGN(const graph::ClusterSpec cluster, read_cluster(options.topology));
  const PlanCache cache = open_plan_cache(options.cache, "none", "");
  SGA_ASSIGN(const CompiledJob compiled,
             compile_job(job, graph::StorageModel::kNative, {}, &cache));
  const graph::Plan& plan = compiled.compiled.plan;
  SGA_TRY(check_devices(job, plan, cluster, options.topology));
  SGA_ASSIGN(const graph::SimulatedStep step, graph::simulate_step(plan, cluster));
  if (!options.trace.empty()) {
    SGA_TRY(transport::write_file_atomic(options.trace, graph::simulated_trace(plan, step)));
  }
  std::optional<SimulatedFaults> faults;
  if (options.faults.wanted()) {
    SGA_ASSIGN(faults, simulate_faults(job, plan, cluster, step, options.faults));
  }
  const graph::DeviceSpec& device = cluster.hosts[0].devices[0];
  nlohmann::ordered_json out = report(job, plan, cluster, step);
  if (options.json) {
    if (faults) add_json(*faults, out);
    std::cout << out.dump() << "\n";
    return exit_code(faults);
  }
  std::cout << fmt::format(
      "{} on {} x {} (pp {} x dp {} x tp {}, ZeRO {})\n"
      "step        {}, {:.0f} tokens/s, {:.1f} % of the devices' {}FLOP/s\n"
      "busiest     computes {}, communicates {}\n"
      "overlap     {:.1f} % of communication is hidden behind computation\n"
      "memory      {} a device, {}\n",
      plan.name, plan.mesh.num_ranks(), device.kind, plan.mesh.pp, plan.mesh.dp, plan.mesh.tp,
      plan.zero_stage, format_seconds(step.step_s), out["tokens_per_s"].get<double>(),
      100 * out["model_flops_utilization"].get<double>(), format_count(device.flops_per_s),
      format_seconds(step.compute_s), format_seconds(step.communication_s), 100 * step.overlap,
      format_bytes(arena_bytes(plan)), out["fits"].get<bool>() ? "fits" : "does not fit");
  if (faults) std::cout << to_text(*faults);
  return exit_code(faults);
}

}  // namespace

void add_simulate(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("simulate", "time a job's step on a cluster, by a cost model");
  auto options = std::make_shared<SimulateOptions>();
  sub->add_option("job", options->job, "job file")->required();
  sub->add_option("--topology", options->topology, "cluster file")->required();
  sub->add_option("--trace", options->trace, "write a Chrome trace of the step to FILE");
  sub->add_option("--faults", options->faults.file,
                  "scenario, as of sgactor chaos: what the run would lose to it");
  sub->add_option("--seed", options->faults.seed,
                  "of what the scenario leaves open; without one, devices that fail now and then");
  sub->add_flag("--json", options->json, "one JSON object");
  add_cache_options(*sub, options->cache);
  sub->callback(
      [&line, options] { line.action = [&line, options] { return simulate(line, *options); }; });
}

}  // namespace sgactor::apps
