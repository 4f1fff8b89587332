#include "transport/topology/host_survey.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace sgactor::transport {
namespace {

namespace fs = std::filesystem;

/// First line of a file, without its newline; empty if it cannot be read.
std::string first_line(const std::string& file) {
  std::string line;
  std::ifstream in(file, std::ios::binary);
  std::getline(in, line);
  return line;
}

int64_t number_in(const std::string& text, int64_t otherwise) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : otherwise;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    out.push_back(it->path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The number of "node12" after "node"; -1 if the name is another.
int64_t index_of(const std::string& name, std::string_view head) {
  if (!name.starts_with(head) || name.size() == head.size()) return -1;
  const std::string digits = name.substr(head.size());
  if (digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return number_in(digits, -1);
}

/// Bytes of the line "<words> <key> 1234 kB".
int64_t kilobytes_of(const std::string& file, const std::string& key) {
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(key);
    if (at == std::string::npos) continue;
    const size_t digits = line.find_first_of("0123456789", at + key.size());
    if (digits != std::string::npos) return number_in(line.substr(digits), 0) * 1024;
  }
  return 0;
}

void survey_cpus(const std::string& root, HostSurvey& host) {
  std::ifstream in(root + "/proc/cpuinfo", std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("processor")) ++host.threads;
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos && host.cpu_model.empty()) {
      host.cpu_model = line.substr(colon + 2);
    }
  }
  const std::string cpus = root + "/sys/devices/system/cpu";
  std::set<int64_t> sockets;
  std::set<std::pair<int64_t, int64_t>> cores;
  for (const std::string& name : names_in(cpus)) {
    if (index_of(name, "cpu") < 0) continue;
    const std::string topology = cpus + "/" + name + "/topology/";
    const std::string core = first_line(topology + "core_id");
    if (core.empty()) continue;  // not online
    const int64_t socket = number_in(first_line(topology + "physical_package_id"), 0);
    sockets.insert(socket);
    cores.emplace(socket, number_in(core, 0));
  }
  host.sockets = static_cast<int32_t>(sockets.size());
  host.cores = static_cast<int32_t>(cores.size());
}

void survey_memory(const std::string& root, HostSurvey& host) {
  host.memory_bytes = kilobytes_of(root + "/proc/meminfo", "MemTotal:");
  const std::string nodes = root + "/sys/devices/system/node";
  for (const std::string& name : names_in(nodes)) {
    const int64_t index = index_of(name, "node");
    if (index < 0) continue;
    NumaNode node;
    node.index = static_cast<int32_t>(index);
    node.cpus = first_line(nodes + "/" + name + "/cpulist");
    node.memory_bytes = kilobytes_of(nodes + "/" + name + "/meminfo", "MemTotal:");
    host.numa_nodes.push_back(std::move(node));
  }
  std::sort(host.numa_nodes.begin(), host.numa_nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.index < b.index; });
}

void survey_ethernet(const std::string& root, HostSurvey& host) {
  constexpr int64_t kEthernet = 1;  // ARPHRD_ETHER
  const std::string net = root + "/sys/class/net";
  for (const std::string& name : names_in(net)) {
    const std::string at = net + "/" + name;
    if (number_in(first_line(at + "/type"), 0) != kEthernet) continue;
    NetworkInterface interface;
    interface.name = name;
    interface.kind = "ethernet";
    interface.up = first_line(at + "/operstate") != "down";
    // Megabits; -1, or an error, where the driver knows none.
    const int64_t megabits = number_in(first_line(at + "/speed"), 0);
    interface.bits_per_s = std::max<int64_t>(0, megabits) * 1'000'000;
    host.interfaces.push_back(std::move(interface));
  }
}

void survey_infiniband(const std::string& root, HostSurvey& host) {
  const std::string devices = root + "/sys/class/infiniband";
  for (const std::string& device : names_in(devices)) {
    const std::string ports = devices + "/" + device + "/ports";
    for (const std::string& port : names_in(ports)) {
      const std::string at = ports + "/" + port;
      NetworkInterface interface;
      interface.name = fmt::format("{}:{}", device, port);
      interface.kind = "infiniband";
      interface.up = first_line(at + "/state").find("ACTIVE") != std::string::npos;
      // "400 Gb/sec (4X NDR)"
      const double gigabits = std::strtod(first_line(at + "/rate").c_str(), nullptr);
      if (std::isfinite(gigabits) && gigabits > 0 && gigabits < 1e6) {
        interface.bits_per_s = std::llround(gigabits * 1e9);
      }
      host.interfaces.push_back(std::move(interface));
    }
  }
}

}  // namespace

HostSurvey survey_host(const std::string& root) {
  HostSurvey host;
  host.name = first_line(root + "/proc/sys/kernel/hostname");
  survey_cpus(root, host);
  survey_memory(root, host);
  survey_ethernet(root, host);
  survey_infiniband(root, host);
  return host;
}

}  // namespace sgactor::transport
