#pragma once
#include "graph/base/status.h"
#include "graph/cluster/cluster_spec.h"
#include "transport/topology/host_survey.h"
#include "transport/topology/nvml_devices.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

/// What NVIDIA states of a device: BF16 products without sparsity, memory, one NVLink each way.
struct KnownGpu {
  std::string_view kind;  ///< "h200", as topology files name it
  double flops_per_s = 0;
  double memory_bytes_per_s = 0;
  double nvlink_bytes_per_s = 0;
};
/// By the driver's name of the device ("NVIDIA H200"); null: not in the table. Figures are of
/// NVIDIA's data sheets.
const KnownGpu* find_gpu(std::string_view name);

/// A cluster and, for each of its lines, where the figures come from.
struct SourcedCluster {
  graph::ClusterSpec cluster;
  std::string network_source;
  std::string link_source;
  std::string device_source;
};
/// Between hosts, by the fastest interface that is up and says its speed; else assumed.
graph::LinkSpec network_of(const transport::HostSurvey& host, std::string& source);
/// Between the GPUs of a host: NVLink, else PCI Express, else assumed.
graph::LinkSpec gpu_link(const transport::NvidiaDevice& gpu, std::string& source);
/// One word, as topology files need it: what is no letter, digit, '.', '-' or '_' becomes '-'.
std::string one_word(std::string_view text);
/// The file: print_cluster() with each source as a comment above its line.
std::string topology_text(const SourcedCluster& sourced);

}  // namespace sgactor::apps
