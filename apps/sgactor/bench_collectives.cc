#include "apps/sgactor/bench_collectives.h"

#include "apps/sgactor/collectives_bench.h"
#include "apps/sgactor/data_plane.h"
#include "apps/sgactor/fabric_hash.h"
#include "graph/base/units.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::apps {
namespace {

struct Options {
  std::vector<std::string> transports = {"shm", "tcp"};
  std::vector<int32_t> processes = {2, 4};
  std::string algorithm = "ring";
  std::vector<int64_t> bytes;
  std::string check_frames = "auto";
  bool json = false;
};

nlohmann::ordered_json to_json(const CollectivesBenchOptions& options, const std::string& algorithm,
                               const std::vector<CollectivesBenchRow>& rows) {
  nlohmann::ordered_json out;
  out["collective"] = "all_reduce";
  out["transport"] = options.transport;
  out["processes"] = options.num_processes;
  out["algorithm"] = algorithm;
  for (const CollectivesBenchRow& row : rows) {
    nlohmann::ordered_json item;
    item["bytes"] = row.bytes;
    item["time_us"] = row.time_us;
    item["cpu_us"] = row.cpu_us;
    item["bus_gb_s"] = row.bus_gb_s;
    out["rows"].push_back(item);
  }
  return out;
}

Result<int> bench_collectives(const Options& options) {
  const FabricHash hash;
  CollectivesBenchOptions bench;
  bench.hash = &hash;
  bench.sizes_bytes = options.bytes;
  bench.check_frames = frame_check_of(options.check_frames);
  SGA_ASSIGN(bench.algorithm, parse_algorithm(options.algorithm));
  if (!options.json) {
    std::cout << fmt::format("{:<10} {:>9} {:<17} {:>10} {:>12} {:>10}\n", "transport", "processes",
                             "algorithm", "size", "time", "bus GB/s");
  }
  for (const std::string& transport : options.transports) {
    for (const int32_t processes : options.processes) {
      bench.transport = transport;
      bench.num_processes = processes;
      SGA_ASSIGN(const auto rows, run_collectives_bench(bench));
      if (options.json) {
        std::cout << to_json(bench, options.algorithm, rows).dump() << "\n" << std::flush;
        continue;
      }
      for (const CollectivesBenchRow& row : rows) {
        std::cout << fmt::format("{:<10} {:>9} {:<17} {:>10} {:>12} {:>10.3f}\n", transport,
                                 processes, options.algorithm, format_bytes(row.bytes),
                                 format_seconds(row.time_us * 1e-6), row.bus_gb_s);
      }
    }
  }
  return kExitDone;
}

}  // namespace

void add_bench_collectives(CLI::App& bench, CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "collectives", "all-reduce between processes of this machine: time and bus bandwidth");
  command->add_option("--transport", options->transports, "shm, tcp, ucx")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--processes", options->processes, "how many take part")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--algorithm", options->algorithm, "exact, ring, tree, halving_doubling")
      ->capture_default_str();
  command->add_option("--check-frames", options->check_frames, "as resilience.check_frames")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  command->add_option("--bytes", options->bytes, "sizes; by default 8 B to 64 MiB")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32));
  command->add_flag("--json", options->json, "one JSON object a transport and number of processes");
  command->callback(
      [&line, options] { line.action = [options] { return bench_collectives(*options); }; });
}

}  // namespace sgactor::apps
