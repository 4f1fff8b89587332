// sgactor topo: what this host has, and a topology file of it.
#include "apps/sgactor/collectives_bench.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/fabric_hash.h"
#include "apps/sgactor/kernel_bench.h"
#include "apps/sgactor/printable.h"
#include "apps/sgactor/topo_file.h"
#include "graph/base/units.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;
using transport::HostSurvey;
using transport::NvidiaDevice;

constexpr double kMeasureSeconds = 1;  // of a device, products and memory together

struct TopoOptions {
  std::string save;
  int64_t cpu_workers = 0;
  bool json = false;
};

struct Found {
  HostSurvey host;
  std::vector<NvidiaDevice> gpus;
  std::string no_gpus;  ///< why there are none
  std::string kernels;  ///< of the cpu backend
};

Json to_json(const Found& found) {
  const HostSurvey& h = found.host;
  Json out = {{"host", h.name},          {"cpu", h.cpu_model},   {"sockets", h.sockets},
              {"cores", h.cores},        {"threads", h.threads}, {"memory_bytes", h.memory_bytes},
              {"kernels", found.kernels}};
  out["numa_nodes"] = Json::array();
  for (const auto& n : h.numa_nodes) {
    out["numa_nodes"].push_back(
        {{"index", n.index}, {"cpus", n.cpus}, {"memory_bytes", n.memory_bytes}});
  }
  out["cuda_devices"] = Json::array();
  for (const NvidiaDevice& g : found.gpus) {
    out["cuda_devices"].push_back({{"index", g.index},
                                   {"name", g.name},
                                   {"uuid", g.uuid},
                                   {"pci", g.pci},
                                   {"memory_bytes", g.memory_bytes},
                                   {"nvlinks", g.nvlinks},
                                   {"pcie_generation", g.pcie_generation},
                                   {"pcie_width", g.pcie_width}});
  }
  out["no_cuda_devices"] = found.no_gpus.empty() ? Json() : Json(found.no_gpus);
  out["interfaces"] = Json::array();
  for (const auto& i : h.interfaces) {
    out["interfaces"].push_back({{"name", i.name},
                                 {"kind", i.kind},
                                 {"up", i.up},
                                 {"bits_per_s", i.bits_per_s > 0 ? Json(i.bits_per_s) : Json()}});
  }
  return out;
}

std::string link_text(const NvidiaDevice& g) {
  std::string out;
  if (g.nvlinks > 0) out += fmt::format(", {} NVLinks", g.nvlinks);
  if (g.pcie_generation > 0) {
    out += fmt::format(", PCI Express {} x{}", g.pcie_generation, g.pcie_width);
  }
  return out;
}

std::string to_text(const Found& found) {
  const HostSurvey& h = found.host;
  std::string out = fmt::format(
      "host      {}\ncpu       {}: {} socket{}, {} cores, {} threads\nkernels   {}\nmemory    {}\n",
      h.name, h.cpu_model.empty() ? "unknown" : h.cpu_model, h.sockets, h.sockets == 1 ? "" : "s",
      h.cores, h.threads, found.kernels, format_bytes(h.memory_bytes));
  for (const auto& n : h.numa_nodes) {
    out += fmt::format("numa {}    cpus {}, {}\n", n.index, n.cpus, format_bytes(n.memory_bytes));
  }
  if (found.gpus.empty()) out += fmt::format("cuda      {}\n", found.no_gpus);
  for (const NvidiaDevice& g : found.gpus) {
    out +=
        fmt::format("cuda:{:<4} {}, {}, at {}{}\n", g.index, g.name, format_bytes(g.memory_bytes),
                    g.pci.empty() ? "an unknown place" : g.pci, link_text(g));
  }
  for (const auto& i : h.interfaces) {
    const std::string speed =
        i.bits_per_s > 0 ? fmt::format("{} Gbit/s", static_cast<double>(i.bits_per_s) * 1e-9)
                         : "speed unknown";
    out += fmt::format("network   {} ({}), {}, {}\n", i.name, i.kind, i.up ? "up" : "down", speed);
  }
  return printable(out);
}

// --- the file ---

/// Between worker processes, which meet in shared memory. Forks: called before there are threads.
Result<graph::LinkSpec> measure_link() {
  const FabricHash hash;
  CollectivesBenchOptions options;
  options.hash = &hash;
  options.sizes_bytes = {8, int64_t{4} << 20};
  SGA_ASSIGN(const auto rows, run_collectives_bench(options));
  // A ring of two has two hops.
  return graph::LinkSpec{rows[1].bus_gb_s * 1e9, rows[0].time_us * 1e-6 / 2};
}

graph::DeviceSpec share(graph::DeviceSpec device, int64_t workers) {
  device.memory_bytes /= workers;
  device.flops_per_s /= static_cast<double>(workers);
  device.memory_bytes_per_s /= static_cast<double>(workers);
  return device;
}

Result<SourcedCluster> cpu_cluster(const Found& found, int64_t workers, const graph::LinkSpec& link,
                                   kernels::Backend& cpu) {
  SourcedCluster out;
  SGA_ASSIGN(const DeviceSpeed speed, measure_device(cpu, DType::kF32, kMeasureSeconds));
  graph::DeviceSpec whole;
  whole.kind = "cpu";
  whole.memory_bytes = found.host.memory_bytes > 0 ? found.host.memory_bytes : kGiB;
  whole.flops_per_s = speed.flops_per_s;
  whole.memory_bytes_per_s = speed.bytes_per_s;
  graph::HostSpec host;
  host.name = one_word(found.host.name);
  host.link = link;
  host.devices.assign(static_cast<size_t>(workers), share(whole, workers));
  out.cluster.hosts.push_back(std::move(host));
  out.link_source = "measured: all-reduce of two processes in shared memory";
  out.device_source = fmt::format(
      "measured: f32 product and sum on {}, memory looked up{}", one_line(cpu.info().description),
      workers > 1 ? fmt::format("; each of {} workers has its share", workers) : "");
  return out;
}

/// One that is not in the table is measured.
Result<graph::DeviceSpec> gpu_spec(const CommandLine& line, const NvidiaDevice& gpu,
                                   std::string& source) {
  // Of what is stated, products and kernels on an H200 reach this much (docs/benchmarks/cuda.md).
  constexpr double kFlopsShare = 0.66;
  constexpr double kMemoryShare = 0.83;
  graph::DeviceSpec out;
  out.memory_bytes = gpu.memory_bytes > 0 ? gpu.memory_bytes : kGiB;
  if (const KnownGpu* known = find_gpu(gpu.name)) {
    out.kind = known->kind;
    out.flops_per_s = known->flops_per_s * kFlopsShare;
    out.memory_bytes_per_s = known->memory_bytes_per_s * kMemoryShare;
    source =
        "looked up in NVIDIA's data sheets: 66 % of the BF16 products and 83 % of the memory "
        "bandwidth that they state";
    return out;
  }
  kernels::BackendOptions where;
  where.device_index = gpu.index;
  auto backend = create_device(*line.backends, {"cuda", where});
  if (!backend.ok()) {
    return backend.status().with_context("topo --save: nothing is known of \"" + gpu.name +
                                         "\", and it cannot be measured");
  }
  SGA_ASSIGN(const DeviceSpeed speed, measure_device(**backend, DType::kBF16, kMeasureSeconds));
  out.kind = one_word(gpu.name);
  out.flops_per_s = speed.flops_per_s;
  out.memory_bytes_per_s = speed.bytes_per_s;
  source = "measured: bf16 product and f32 sum; memory looked up";
  return out;
}

Result<SourcedCluster> gpu_cluster(const CommandLine& line, const Found& found) {
  SourcedCluster out;
  graph::HostSpec host;
  host.name = one_word(found.host.name);
  host.link = gpu_link(found.gpus[0], out.link_source);
  for (const NvidiaDevice& gpu : found.gpus) {
    SGA_ASSIGN(graph::DeviceSpec device, gpu_spec(line, gpu, out.device_source));
    host.devices.push_back(std::move(device));
  }
  out.cluster.hosts.push_back(std::move(host));
  return out;
}

Status save(const CommandLine& line, const TopoOptions& options, const Found& found,
            const std::optional<graph::LinkSpec>& link, kernels::Backend& cpu) {
  SourcedCluster sourced;
  if (link) {
    SGA_ASSIGN(sourced, cpu_cluster(found, std::max<int64_t>(1, options.cpu_workers), *link, cpu));
  } else {
    SGA_ASSIGN(sourced, gpu_cluster(line, found));
  }
  sourced.cluster.network = network_of(found.host, sourced.network_source);
  const Status written = transport::write_file_atomic(options.save, topology_text(sourced));
  if (written.ok()) return {};
  return invalid_argument("--save " + options.save + ": " + written.message());
}

Result<int> topo(const CommandLine& line, const TopoOptions& options) {
  if (options.cpu_workers > 0 && options.save.empty()) {
    return invalid_argument("--cpu-workers: is of the file that --save FILE writes");
  }
  Found found;
  found.host = transport::survey_host();
  std::optional<graph::LinkSpec> link;
  // First, since it forks: NVML and the backend start threads.
  if (options.cpu_workers > 0) {
    SGA_ASSIGN(link, measure_link());
  }
  auto gpus = transport::list_nvidia_devices();
  if (gpus.ok()) found.gpus = std::move(*gpus);
  if (found.gpus.empty()) {
    found.no_gpus = gpus.ok() ? "the NVIDIA driver has no device"
                              : "no NVIDIA driver: " + gpus.status().message();
  }
  if (!options.save.empty() && !link && found.gpus.empty()) {
    SGA_ASSIGN(link, measure_link());
  }
  SGA_ASSIGN(const auto cpu, create_device(*line.backends, {"cpu", {}}));
  found.kernels = cpu->info().description;
  if (!options.save.empty()) SGA_TRY(save(line, options, found, link, *cpu));
  if (options.json) {
    std::cout << to_json(found).dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << to_text(found);
    if (!options.save.empty()) std::cout << "saved     " << options.save << "\n";
  }
  return kExitDone;
}

}  // namespace

void add_topo(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("topo", "what this host has: CPUs, memory, GPUs, network");
  auto options = std::make_shared<TopoOptions>();
  sub->add_option("--save", options->save,
                  "write a topology file for `plan`, `simulate` and compile.topology; measures for "
                  "about two seconds what it cannot look up");
  sub->add_option("--cpu-workers", options->cpu_workers,
                  "with --save: describe that many worker processes on the CPU, not the GPUs")
      ->check(CLI::Range(1, 4096));
  sub->add_flag("--json", options->json, "one JSON object");
  sub->callback(
      [&line, options] { line.action = [&line, options] { return topo(line, *options); }; });
}

}  // namespace sgactor::apps
