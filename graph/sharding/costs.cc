#include "graph/sharding/costs.h"

#include "graph/base/units.h"

#include <algorithm>
#include <limits>

namespace sgactor::graph {

AxisCosts axis_costs(const ClusterSpec& cluster, int64_t members) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  AxisCosts costs{0, kNone, kNone};
  bool inside = true;
  for (const HostSpec& host : cluster.hosts) {
    inside = inside && static_cast<int64_t>(host.devices.size()) >= members;
    costs.latency_s = std::max(costs.latency_s, host.link.latency_s);
    costs.bytes_per_s = std::min(costs.bytes_per_s, host.link.bytes_per_s);
    for (const DeviceSpec& device : host.devices) {
      costs.flops_per_s = std::min(costs.flops_per_s, device.flops_per_s);
    }
  }
  if (!inside) {
    costs.latency_s = cluster.network.latency_s;
    costs.bytes_per_s = cluster.network.bytes_per_s;
  }
  return costs;
}

int64_t shard_extent(int64_t extent, int64_t members) { return ceil_div(extent, members); }

TensorType local_type(const TensorType& type, Placement placement, int64_t members) {
  TensorType local = type;
  if (placement.is_shard()) {
    local.shape.set_dim(placement.dim, shard_extent(type.shape.dim(placement.dim), members));
  }
  return local;
}

double conversion_seconds(const TensorType& type, Placement from, Placement to, int64_t members,
                          const AxisCosts& costs) {
  if (from == to || members <= 1) return 0;
  if (to.is_partial()) return std::numeric_limits<double>::infinity();
  if (from.is_replicate()) return 0;  // each rank takes its part of what it has
  const auto n = static_cast<double>(members);
  const double pass = (n - 1) * costs.latency_s +
                      (n - 1) / n * static_cast<double>(type.bytes()) / costs.bytes_per_s;
  return from.is_partial() && to.is_replicate() ? 2 * pass : pass;
}

}  // namespace sgactor::graph
