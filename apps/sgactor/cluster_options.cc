#include "apps/sgactor/cluster_options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace sgactor::apps {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

/// False if `text` is no number of [low, high].
bool read_number(const std::string& text, int64_t low, int64_t high, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= low && out <= high;
}

}  // namespace

void add_cluster_options(CLI::App& sub, ClusterOptions& options) {
  sub.add_option("--workers", options.workers, "worker processes; without: all in this process")
      ->check(CLI::Range(1, 65536));
  sub.add_option("--spares", options.spares, "further workers that wait for a loss")
      ->check(CLI::Range(0, 65536));
  sub.add_option("--bind", options.bind,
                 "address that the control port listens on; default: loopback");
  sub.add_option("--port", options.port, "control port; default: a free one")
      ->check(CLI::Range(0, 65535));
  sub.add_option("--nodes", options.nodes, "MIN:MAX nodes, this host's included");
  sub.add_option("--hosts", options.hosts, "file with a host a line; each is started over ssh");
  sub.add_option("--ssh", options.ssh,
                 "program by its path, and options, in place of /usr/bin/ssh");
  sub.add_option("--join-timeout", options.join_timeout_s, "seconds to wait for nodes")
      ->check(CLI::Range(1, 86400));
}

Result<Launcher> read_launcher() {
  struct Names {
    const char* rank;
    const char* size;
    const char* local;
  };
  constexpr Names kNames[] = {
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"RANK", "WORLD_SIZE", "LOCAL_RANK"}};
  for (const Names& names : kNames) {
    const std::string rank = environment(names.rank);
    const std::string size = environment(names.size);
    if (rank.empty() || size.empty()) continue;
    int64_t r = 0;
    int64_t n = 0;
    if (!read_number(size, 1, 1 << 20, n) || !read_number(rank, 0, n - 1, r)) {
      return invalid_argument(fmt::format("{}={} and {}={}: expected a rank below the size",
                                          names.rank, rank, names.size, size));
    }
    Launcher out{static_cast<int32_t>(r), static_cast<int32_t>(n), environment("MASTER_ADDR"), 0};
    if (!read_number(environment("MASTER_PORT"), 1, 65535, out.master_port)) out.master_port = 0;
    int64_t local = 0;
    if (read_number(environment(names.local), 0, n - 1, local)) {
      out.local_rank = static_cast<int32_t>(local);
    }
    return out;
  }
  return Launcher{};
}

Result<NodeRange> parse_nodes(const std::string& text) {
  const size_t colon = text.find(':');
  int64_t min = 0;
  int64_t max = 0;
  const bool ok =
      read_number(text.substr(0, colon), 1, 65536, min) &&
      (colon == std::string::npos || read_number(text.substr(colon + 1), min, 65536, max));
  if (!ok) return invalid_argument("--nodes " + text + ": expected MIN:MAX");
  return NodeRange{static_cast<int32_t>(min),
                   static_cast<int32_t>(colon == std::string::npos ? min : max)};
}

Result<std::vector<HostLine>> read_hosts(const std::string& file) {
  if (const Status s = check_text_file(file); !s.ok()) return s.with_context("--hosts");
  std::ifstream in(file);
  if (!in) return invalid_argument("--hosts " + file + ": cannot be read");
  std::vector<HostLine> out;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    HostLine host;
    if (!(words >> host.host)) continue;
    std::string word;
    while (words >> word) {
      if (!word.starts_with("workers=") || !read_number(word.substr(8), 1, 4096, host.workers)) {
        return invalid_argument(
            fmt::format("{}:{}: expected HOST [workers=N], got '{}'", file, number, word));
      }
    }
    // A name that ssh would read as an option.
    if (host.host.starts_with("-")) {
      return invalid_argument(fmt::format("{}:{}: expected a host name", file, number));
    }
    out.push_back(std::move(host));
  }
  if (out.empty()) return invalid_argument(file + ": names no host");
  return out;
}

int64_t num_logical_ranks(const JobSpec& job) {
  return job.logical_ranks() * job.parallelism.tensor_parallel_degree *
         job.parallelism.pipeline_parallel_degree;
}

Status check_mesh_fits(const JobSpec& job, int64_t workers) {
  const int64_t ranks = num_logical_ranks(job);
  if (workers >= 1 && workers <= ranks) return {};
  const JobSpec::Parallelism& p = job.parallelism;
  return invalid_argument(fmt::format(
      "--workers {}: the mesh has {} logical rank{}, a worker hosts at least one "
      "({} data-parallel by parallelism.data_parallel_degree and "
      "parallelism.logical_data_parallel, "
      "parallelism.tensor_parallel_degree {}, parallelism.pipeline_parallel_degree {}); "
      "expected 1 to {}",
      workers, ranks, ranks == 1 ? "" : "s", job.logical_ranks(), p.tensor_parallel_degree,
      p.pipeline_parallel_degree, ranks));
}

}  // namespace sgactor::apps
