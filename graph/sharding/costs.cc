#include "graph/sharding/costs.h"

#include "graph/base/units.h"

#include <limits>

namespace sgactor::graph {

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
