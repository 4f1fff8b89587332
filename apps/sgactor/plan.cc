// sgactor plan: what would run, and why. Compiles, allocates nothing, needs no device.
#include "apps/sgactor/cluster_fit.h"
#include "apps/sgactor/cluster_options.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/profile_file.h"
#include "apps/sgactor/resilience_price.h"
#include "apps/sgactor/strategy_choice.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/hash.h"
#include "graph/base/units.h"
#include "graph/compiler/explain_html.h"
#include "graph/ir/text.h"
#include "graph/plan/serial.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

namespace sgactor::apps {
namespace {

struct PlanOptions {
  std::string job;
  std::string dump_dir;
  std::string html;
  std::string topology;
  int64_t workers = 0;  // 0: not asked
  bool json = false;
  bool passes = false;
  CacheOptions cache;
};

nlohmann::ordered_json prices_json(const graph::Plan& plan, int64_t mirror_interval) {
  auto out = nlohmann::ordered_json::array();
  for (const ModePrice& price : price_modes(plan, mirror_interval)) {
    out.push_back({{"mode", price.mode},
                   {"possible", price.possible},
                   {"memory_bytes", price.memory_bytes},
                   {"traffic_bytes_per_step", price.traffic_bytes},
                   {"survives", price.possible ? price.survives : price.why_not}});
  }
  return out;
}

void print_prices(const graph::Plan& plan, int64_t mirror_interval) {
  std::cout << fmt::format("resilience  {:<12}{:>12} a node{:>12} a step\n", "mode", "memory",
                           "traffic");
  for (const ModePrice& price : price_modes(plan, mirror_interval)) {
    if (!price.possible) {
      std::cout << fmt::format("  {:<22}not possible: {}\n", price.mode, price.why_not);
      continue;
    }
    std::cout << fmt::format("  {:<22}{:>12}       {:>12}         {}\n", price.mode,
                             format_bytes(price.memory_bytes), format_bytes(price.traffic_bytes),
                             price.survives);
  }
}

void print_mesh(const graph::Plan& plan) {
  const auto n = plan.ranks.size();
  std::string of = "one rank";
  if (plan.mesh.pp > 1) {
    int64_t most = 0;
    for (const graph::RankProgram& p : plan.programs) most = std::max(most, p.arena_bytes);
    of += " of the first stage, the largest needs " + format_bytes(most);
  }
  std::cout << fmt::format(
      "mesh        pp {} x dp {} x tp {}, ZeRO {}, {} logical rank{}; memory is of {}\n",
      plan.mesh.pp, plan.mesh.dp, plan.mesh.tp, plan.zero_stage, n, n == 1 ? "" : "s", of);
}

/// Who would host what, as `train --workers N` deals the ranks.
void print_workers(const graph::Plan& plan, int64_t workers) {
  std::cout << fmt::format("workers     {}, each with the arenas of its ranks\n", workers);
  const auto dealt = deal_ranks(plan, static_cast<int32_t>(workers));
  for (size_t w = 0; w < dealt.size(); ++w) {
    std::cout << fmt::format("  worker {:<21}{:>12}  rank{} {}\n", w,
                             format_bytes(held_bytes(plan, dealt[w])),
                             dealt[w].size() == 1 ? "" : "s", fmt::join(dealt[w], " "));
  }
}

/// Whether the ranks, dealt over all devices of a cluster, find room on the smallest, and where
/// they are.
void print_cluster_fit(const ClusterFit& fit) {
  constexpr size_t kMostHosts = 16;  // --json has all
  const auto hosts = fit.hosts.size();
  std::cout << fmt::format(
      "cluster     {} device{} on {} host{}, {} in use; {} of {} a device: {}\n", fit.devices,
      fit.devices == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s", fit.used,
      format_bytes(fit.needed_bytes), format_bytes(fit.room_bytes),
      fit.fits() ? "fits" : "does not fit");
  for (const ClusterFit::Axis& axis : fit.axes) {
    std::cout << fmt::format("  {:<28}{:>12}  {} of them inside a host\n", "groups of " + axis.name,
                             axis.groups, axis.inside_hosts);
  }
  size_t shown = 0;
  for (const ClusterFit::Host& host : fit.hosts) {
    if (host.ranks.empty()) continue;
    if (shown++ == kMostHosts) {
      std::cout << "  and more hosts (--json shows all)\n";
      break;
    }
    std::cout << fmt::format("  {:<28}{:>12}  rank{} {}\n", host.name,
                             fmt::format("{} of {}", host.used, host.devices),
                             host.ranks.size() == 1 ? "" : "s", print_ranges(host.ranks));
  }
}

nlohmann::ordered_json cluster_json(const ClusterFit& fit) {
  nlohmann::ordered_json out = {{"devices", fit.devices},
                                {"used", fit.used},
                                {"needed_bytes", fit.needed_bytes},
                                {"room_bytes", fit.room_bytes},
                                {"fits", fit.fits()}};
  out["axes"] = nlohmann::ordered_json::array();
  for (const ClusterFit::Axis& axis : fit.axes) {
    out["axes"].push_back(
        {{"axis", axis.name}, {"groups", axis.groups}, {"inside_hosts", axis.inside_hosts}});
  }
  out["hosts"] = nlohmann::ordered_json::array();
  for (const ClusterFit::Host& host : fit.hosts) {
    out["hosts"].push_back({{"name", host.name},
                            {"devices", host.devices},
                            {"used", host.used},
                            {"ranks", host.ranks}});
  }
  return out;
}

nlohmann::ordered_json workers_json(const graph::Plan& plan, int64_t workers) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& ranks : deal_ranks(plan, static_cast<int32_t>(workers))) {
    out.push_back({{"ranks", ranks}, {"arena_bytes", held_bytes(plan, ranks)}});
  }
  return out;
}

/// `workers`: 0: none were asked for. `fit`: null: no cluster was named.
std::string plan_json(const JobSpec& job, const graph::Compiled& compiled, int64_t workers,
                      const ClusterFit* fit) {
  const graph::Plan& plan = compiled.plan;
  const graph::MemoryStats& m = plan.memory;
  nlohmann::ordered_json out;
  out["params"] = plan.num_parameters;
  out["flops_per_token"] = plan.flops_per_token;
  out["mesh"] = {{"pp", plan.mesh.pp},
                 {"dp", plan.mesh.dp},
                 {"tp", plan.mesh.tp},
                 {"zero_stage", plan.zero_stage},
                 {"logical_ranks", plan.ranks.size()}};
  if (workers > 0) out["workers"] = workers_json(plan, workers);
  if (fit != nullptr) out["cluster"] = cluster_json(*fit);
  out["ops"] = {{"before", plan.ops_before}, {"after", plan.ops_after}};
  out["memory"] = {{"naive_bytes", m.naive_bytes},
                   {"planned_bytes", m.planned_bytes},
                   {"lower_bound_bytes", m.lower_bound_bytes},
                   {"activation_peak_bytes", m.activation_peak_bytes}};
  out["resilience"] = prices_json(plan, job.resilience.mirror_interval);
  out["compile_ms"] = plan.compile_ms;
  out["schema_hash"] = hex64(plan.schema_hash);
  out["passes"] = nlohmann::ordered_json::array();
  for (const graph::PassRecord& pass : compiled.passes) {
    out["passes"].push_back({{"name", pass.name},
                             {"ms", pass.ms},
                             {"ops_before", pass.ops_before},
                             {"ops_after", pass.ops_after},
                             {"note", pass.note},
                             {"details", pass.details}});
  }
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void memory_row(const char* name, int64_t bytes) {
  std::cout << fmt::format("  {:<28}{:>12}\n", name, format_bytes(bytes));
}

void print_summary(const JobSpec& job, const CompiledJob& c) {
  const graph::Plan& plan = c.compiled.plan;
  const graph::MemoryStats& m = plan.memory;
  const auto tokens = static_cast<double>(job.training.global_batch_size * job.training.seq_len);
  std::cout << fmt::format("model       {}\n",
                           job.model.hf.empty() ? job.model.preset : job.model.hf);
  std::cout << fmt::format("parameters  {} ({})\n",
                           format_count(static_cast<double>(plan.num_parameters)),
                           plan.num_parameters);
  std::cout << fmt::format(
      "FLOPs       {} a token (6 N of the matrices, and causal attention at half), {} a step\n",
      format_count(plan.flops_per_token), format_count(plan.flops_per_token * tokens));
  std::cout << fmt::format("step        {} tokens: {} micro-batches of {} x {}\n",
                           static_cast<int64_t>(tokens), job.num_micro_batches(),
                           job.training.micro_batch_size, job.training.seq_len);
  print_mesh(plan);
  std::cout << fmt::format("ops         {} before fusion, {} after\n", plan.ops_before,
                           plan.ops_after);
  for (const graph::FusionReport& f : c.compiled.fusions) {
    if (f.count > 0) std::cout << fmt::format("  {:<28}{:>12}\n", f.pattern, f.count);
  }
  std::cout << "memory\n";
  memory_row("parameters", m.parameter_bytes);
  memory_row("moments", m.moment_bytes);
  memory_row("gradient accumulators", m.accumulator_bytes);
  memory_row("activations, workspaces", m.activation_peak_bytes);
  memory_row("planned, all", m.planned_bytes);
  memory_row("lower bound", m.lower_bound_bytes);
  memory_row("without reuse", m.naive_bytes);
  print_prices(plan, job.resilience.mirror_interval);
  std::cout << fmt::format("{}in {}, schema_hash {}\n",
                           c.from_cache ? "from cache  " : "compiled    ",
                           format_seconds(plan.compile_ms * 1e-3), hex64(plan.schema_hash));
}

void print_passes(const graph::Compiled& compiled) {
  std::cout << "passes\n";
  for (const graph::PassRecord& pass : compiled.passes) {
    std::cout << fmt::format("  {:<24}{:>9}  {:>6} -> {:<6} ops  {}\n", pass.name,
                             format_seconds(pass.ms * 1e-3), pass.ops_before, pass.ops_after,
                             pass.note);
    for (const std::string& line : pass.details) std::cout << fmt::format("    {}\n", line);
  }
  std::cout << graph::print_plan(compiled.plan);
}

/// Writes "03-fuse_ops.training.sgir" and "….update.sgir" after each pass.
struct Dumper {
  std::string dir;
  int number = 0;
  Status status;

  void operator()(const std::string& pass, const graph::Graph& training,
                  const graph::Graph& update) {
    const std::string stem = fmt::format("{}/{:02}-{}", dir, number++, pass);
    for (const auto& [kind, graph] : {std::pair{"training", &training}, {"update", &update}}) {
      if (!status.ok() || graph->ops().empty()) continue;
      status = transport::write_file_atomic(stem + "." + kind + ".sgir", print_graph(*graph));
    }
  }
};

/// A place that cannot be written is a wrong command, not a failed run.
Status blame_option(const char* option, const Status& status) {
  return status.ok() ? status : invalid_argument(std::string(option) + ": " + status.message());
}

Status write_html(const JobSpec& job, const graph::Compiled& compiled, const std::string& file) {
  graph::ExplainOptions options;
  options.title = job.name;
  options.subject =
      fmt::format("{}, {} micro-batches of {} x {}, {}",
                  job.model.hf.empty() ? job.model.preset : job.model.hf, job.num_micro_batches(),
                  job.training.micro_batch_size, job.training.seq_len, job.training.dtype);
  return blame_option("--html",
                      transport::write_file_atomic(file, graph::explain_html(compiled, options)));
}

Result<int> plan(const CommandLine& line, const PlanOptions& options) {
  SGA_ASSIGN(JobSpec job, load_job(options.job, line.overrides));
  SGA_TRY(choose_strategy(*line.strategies, job));
  if (!options.topology.empty()) job.compile.topology = options.topology;
  if (options.workers > 0) SGA_TRY(check_mesh_fits(job, options.workers));
  Dumper dumper{options.dump_dir};
  decltype(graph::CompileOptions::dump) dump;
  if (!options.dump_dir.empty()) {
    SGA_TRY(blame_option("--dump-ir", transport::make_dirs(options.dump_dir)));
    dump = std::ref(dumper);
  }
  const PlanCache cache = open_plan_cache(options.cache, "none", "");
  SGA_ASSIGN(const CompiledJob c,
             compile_job(job, graph::StorageModel::kNative, dump, dump ? nullptr : &cache));
  SGA_TRY(blame_option("--dump-ir", dumper.status));
  if (!options.html.empty()) SGA_TRY(write_html(job, c.compiled, options.html));
  SGA_ASSIGN(const LoadedCluster cluster, load_cluster(job));
  std::optional<ClusterFit> fit;
  if (cluster.cluster != nullptr) fit = cluster_fit(c.compiled.plan, *cluster.cluster);
  if (options.json) {
    std::cout << plan_json(job, c.compiled, options.workers, fit ? &*fit : nullptr) << "\n";
    return kExitDone;
  }
  print_summary(job, c);
  if (options.workers > 0) print_workers(c.compiled.plan, options.workers);
  if (fit) print_cluster_fit(*fit);
  if (options.passes) print_passes(c.compiled);
  return kExitDone;
}

}  // namespace

void add_plan(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("plan", "show what a job would run, without a device");
  auto options = std::make_shared<PlanOptions>();
  sub->add_option("job", options->job, "job file")->required();
  sub->add_option("--dump-ir", options->dump_dir, "write both graphs after each pass to DIR");
  sub->add_option("--html", options->html, "write one self-contained page to FILE");
  sub->add_option("--topology", options->topology,
                  "cluster file whose links and devices predict times: compile.topology");
  sub->add_option("--workers", options->workers,
                  "check that the mesh fits that many and show which ranks each would host")
      ->check(CLI::Range(1, 65536));
  add_cache_options(*sub, options->cache);
  sub->add_flag("--json", options->json, "one JSON object");
  sub->add_flag("--passes", options->passes, "also passes, subgraphs and launch order");
  sub->callback(
      [&line, options] { line.action = [&line, options] { return plan(line, *options); }; });
}

}  // namespace sgactor::apps
