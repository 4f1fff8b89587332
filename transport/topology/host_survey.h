#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::transport {

struct NumaNode {
  int32_t index = 0;
  std::string cpus;  ///< "0-15,32-47"
  int64_t memory_bytes = 0;
};
struct NetworkInterface {
  std::string name;  ///< "eth0", "mlx5_0:1"
  std::string kind;  ///< "ethernet", "infiniband"
  bool up = false;
  int64_t bits_per_s = 0;  ///< 0: it does not say
};

/// What a host says of itself. 0 or empty: it does not say.
struct HostSurvey {
  std::string name;
  std::string cpu_model;
  int32_t sockets = 0;
  int32_t cores = 0;    ///< physical
  int32_t threads = 0;  ///< hardware threads that are online
  int64_t memory_bytes = 0;
  std::vector<NumaNode> numa_nodes;
  std::vector<NetworkInterface> interfaces;  ///< by name, without loopback
};

/// Reads /proc and /sys below `root` ("" for this machine's own); what is missing there stays at
/// its default. Writes nothing, never fails.
HostSurvey survey_host(const std::string& root = {});

}  // namespace sgactor::transport
