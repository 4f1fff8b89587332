#include "apps/sgactor/topo_file.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <sstream>

namespace sgactor::apps {
namespace {

struct GpuRow {
  std::string_view words;  ///< of the driver's name
  KnownGpu gpu;
};

// NVIDIA's data sheets: Blackwell architecture brief (B200), GH200, H200, H100, A100, L40S, L4,
// A10. The first row whose text is in a name counts.
constexpr std::array<GpuRow, 13> kGpus = {{
    {"B200", {"b200", 2250e12, 8.0e12, 50e9}},
    {"GH200", {"gh200", 989e12, 4.0e12, 25e9}},
    {"H200", {"h200", 989e12, 4.8e12, 25e9}},
    {"H100 PCIe", {"h100-pcie", 756e12, 2.0e12, 25e9}},
    {"H100", {"h100", 989e12, 3.35e12, 25e9}},
    {"A100-SXM4-80GB", {"a100-80gb", 312e12, 2.039e12, 25e9}},
    {"A100 80GB PCIe", {"a100-80gb-pcie", 312e12, 1.935e12, 25e9}},
    {"A100-SXM4-40GB", {"a100-40gb", 312e12, 1.555e12, 25e9}},
    {"A100-PCIE-40GB", {"a100-40gb-pcie", 312e12, 1.555e12, 25e9}},
    {"L40S", {"l40s", 362e12, 0.864e12, 0}},
    {"NVIDIA L40", {"l40", 181e12, 0.864e12, 0}},
    {"NVIDIA L4", {"l4", 121e12, 0.3e12, 0}},
    {"NVIDIA A10", {"a10", 125e12, 0.6e12, 0}},
}};

// What is reached of a stated link, as NCCL's bus bandwidth on H200 has it: 360 of 450 GB/s.
constexpr double kLinkShare = 0.8;
constexpr double kGpuLinkLatency = 6e-6;
constexpr double kEthernetLatency = 50e-6;
constexpr double kInfinibandLatency = 15e-6;
constexpr int64_t kAssumedBits = 10'000'000'000;

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// Whether `words` stand in `name` and are no part of longer ones.
bool has_words(std::string_view name, std::string_view words) {
  const size_t at = name.find(words);
  if (at == std::string_view::npos) return false;
  const size_t end = at + words.size();
  return (at == 0 || !is_word_char(name[at - 1])) &&
         (end == name.size() || !is_word_char(name[end]));
}

/// Bytes a second of one lane each way, after its line code.
double pcie_lane_bytes(int32_t generation) {
  constexpr std::array<double, 6> kBytes = {0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  const auto index = static_cast<size_t>(generation - 1);
  return index < kBytes.size() ? kBytes[index] : kBytes.back();
}

}  // namespace

const KnownGpu* find_gpu(std::string_view name) {
  for (const GpuRow& row : kGpus) {
    if (has_words(name, row.words)) return &row.gpu;
  }
  return nullptr;
}

graph::LinkSpec network_of(const transport::HostSurvey& host, std::string& source) {
  const transport::NetworkInterface* best = nullptr;
  for (const transport::NetworkInterface& i : host.interfaces) {
    if (!i.up || i.bits_per_s <= 0) continue;
    if (best == nullptr || i.bits_per_s > best->bits_per_s) best = &i;
  }
  if (best == nullptr) {
    source = "assumed, since no interface says its speed: 10 Gbit/s, 50 us";
    return {static_cast<double>(kAssumedBits) / 8, kEthernetLatency};
  }
  const bool infiniband = best->kind == "infiniband";
  source = fmt::format("bandwidth looked up: {} says {} Gbit/s; latency assumed", best->name,
                       static_cast<double>(best->bits_per_s) * 1e-9);
  return {static_cast<double>(best->bits_per_s) / 8,
          infiniband ? kInfinibandLatency : kEthernetLatency};
}

graph::LinkSpec gpu_link(const transport::NvidiaDevice& gpu, std::string& source) {
  const KnownGpu* known = find_gpu(gpu.name);
  if (gpu.nvlinks > 0) {
    const double each =
        known != nullptr && known->nvlink_bytes_per_s > 0 ? known->nvlink_bytes_per_s : 25e9;
    source = fmt::format(
        "looked up: {} active NVLinks of {:.0f} GB/s each way, 80 % of it reached; latency assumed",
        gpu.nvlinks, each * 1e-9);
    return {gpu.nvlinks * each * kLinkShare, kGpuLinkLatency};
  }
  if (gpu.pcie_generation > 0 && gpu.pcie_width > 0) {
    source =
        fmt::format("looked up: PCI Express {} with {} lanes, 80 % of it reached; latency assumed",
                    gpu.pcie_generation, gpu.pcie_width);
    return {gpu.pcie_width * pcie_lane_bytes(gpu.pcie_generation) * kLinkShare, kGpuLinkLatency};
  }
  source = "assumed, since the driver says nothing: PCI Express 3 with 16 lanes";
  return {16 * pcie_lane_bytes(3) * kLinkShare, kGpuLinkLatency};
}

std::string one_word(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_';
    out += plain ? c : '-';
  }
  return out.empty() ? "unnamed" : out;
}

std::string topology_text(const SourcedCluster& sourced) {
  std::string out =
      "# Written by `sgactor topo --save`; where each figure comes from stands above it.\n";
  bool first_device = true;
  std::istringstream lines(graph::print_cluster(sourced.cluster));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("network")) out += "# " + sourced.network_source + "\n";
    if (line.starts_with("host")) out += "# " + sourced.link_source + "\n";
    if (line.starts_with("  device") && first_device) {
      out += "  # " + sourced.device_source + "\n";
      first_device = false;
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace sgactor::apps
