#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::graph {

/// What a cluster is made of, as far as costs need it. Plain data; compared exactly.

struct LinkSpec {
  double bytes_per_s = 0;  ///< each way, an endpoint
  double latency_s = 0;
  friend bool operator==(const LinkSpec&, const LinkSpec&) = default;
};

struct DeviceSpec {
  std::string kind;  ///< "h200", "cpu"; one word
  int64_t memory_bytes = 0;
  double flops_per_s = 0;         ///< as matrix products reach it
  double memory_bytes_per_s = 0;  ///< as kernels reach it
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

struct HostSpec {
  std::string name;  ///< one word, unique
  LinkSpec link;     ///< between its devices
  std::vector<DeviceSpec> devices;
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

struct ClusterSpec {
  LinkSpec network;  ///< between hosts
  std::vector<HostSpec> hosts;
  [[nodiscard]] int32_t num_devices() const {
    size_t n = 0;
    for (const HostSpec& host : hosts) n += host.devices.size();
    return static_cast<int32_t>(n);
  }
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

/// Text form, a line each; '#' starts a comment:
///   network <bytes/s> <latency s>
///   host <name> <bytes/s> <latency s>
///   device <kind> <memory bytes> <flops/s> <memory bytes/s>      (of the host above)
/// Numbers round-trip.
std::string print_cluster(const ClusterSpec& cluster);

/// Errors: kInvalidArgument naming the line: an unknown word, a missing or extra field, a number
/// that is not above 0 (latency: not below 0), a device without a host, a host named twice, no
/// device at all.
Result<ClusterSpec> parse_cluster(std::string_view text);

}  // namespace sgactor::graph
