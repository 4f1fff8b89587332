#include "graph/cluster/cluster_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

namespace sgactor::graph {
namespace {

using Words = std::vector<std::string>;

Words split_words(const std::string& line) {
  std::istringstream in(line.substr(0, line.find('#')));
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Result<double> parse_number(const std::string& word, bool zero_allowed) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  const bool whole = end == word.c_str() + word.size();
  if (!whole || !std::isfinite(value) || value < 0 || (value == 0 && !zero_allowed)) {
    return invalid_argument(
        fmt::format("\"{}\" is no number {} 0", word, zero_allowed ? "of at least" : "above"));
  }
  return value;
}

Result<LinkSpec> parse_link(const std::string& bytes, const std::string& latency) {
  LinkSpec link;
  SGA_ASSIGN(link.bytes_per_s, parse_number(bytes, false));
  SGA_ASSIGN(link.latency_s, parse_number(latency, true));
  return link;
}

Status parse_line(const Words& words, ClusterSpec& cluster) {
  if (words[0] == "network" && words.size() == 3) {
    SGA_ASSIGN(cluster.network, parse_link(words[1], words[2]));
    return {};
  }
  if (words[0] == "host" && words.size() == 4) {
    const bool known = std::any_of(cluster.hosts.begin(), cluster.hosts.end(),
                                   [&](const HostSpec& h) { return h.name == words[1]; });
    if (known) return invalid_argument(fmt::format("host {} is there twice", words[1]));
    HostSpec host{words[1], {}, {}};
    SGA_ASSIGN(host.link, parse_link(words[2], words[3]));
    cluster.hosts.push_back(std::move(host));
    return {};
  }
  if (words[0] == "device" && words.size() == 5) {
    if (cluster.hosts.empty()) return invalid_argument("a device stands before any host");
    DeviceSpec device{words[1], 0, 0, 0};
    SGA_ASSIGN(const double memory, parse_number(words[2], false));
    if (memory >= 0x1p62) return invalid_argument(fmt::format("{} bytes are too many", words[2]));
    device.memory_bytes = static_cast<int64_t>(memory);
    SGA_ASSIGN(device.flops_per_s, parse_number(words[3], false));
    SGA_ASSIGN(device.memory_bytes_per_s, parse_number(words[4], false));
    cluster.hosts.back().devices.push_back(std::move(device));
    return {};
  }
  return invalid_argument(
      fmt::format("\"{}\" with {} fields; known: network (2), host (3), device (4)", words[0],
                  words.size() - 1));
}

}  // namespace

std::string print_cluster(const ClusterSpec& cluster) {
  std::string text =
      fmt::format("network {} {}\n", cluster.network.bytes_per_s, cluster.network.latency_s);
  for (const HostSpec& host : cluster.hosts) {
    text += fmt::format("host {} {} {}\n", host.name, host.link.bytes_per_s, host.link.latency_s);
    for (const DeviceSpec& device : host.devices) {
      text += fmt::format("  device {} {} {} {}\n", device.kind, device.memory_bytes,
                          device.flops_per_s, device.memory_bytes_per_s);
    }
  }
  return text;
}

Result<ClusterSpec> parse_cluster(std::string_view text) {
  ClusterSpec cluster;
  std::istringstream in{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const Words words = split_words(line);
    if (words.empty()) continue;
    SGA_TRY(parse_line(words, cluster).with_context(fmt::format("line {}", number)));
  }
  const bool any = std::any_of(cluster.hosts.begin(), cluster.hosts.end(),
                               [](const HostSpec& h) { return !h.devices.empty(); });
  if (!any) return invalid_argument("the cluster has no device");
  return cluster;
}

}  // namespace sgactor::graph
