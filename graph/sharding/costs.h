#pragma once
#include "graph/base/shape.h"
#include "graph/cluster/cluster_spec.h"
#include "graph/ir/placement.h"

#include <cstdint>

namespace sgactor::graph {

/// What moving and computing costs on one mesh axis. The defaults are of the order of NVLink and a
/// current accelerator; only ratios matter to choices.
struct AxisCosts {
  double latency_s = 5e-6;    ///< of one message between neighbours
  double bytes_per_s = 2e11;  ///< each way, a rank
  double flops_per_s = 2e14;  ///< of one rank
};

/// Costs of an axis of `members` neighbouring ranks, one a device: the slowest host's link where
/// every host has that many devices, else the network; the slowest device's FLOPs. Pre: the cluster
/// has a device.
AxisCosts axis_costs(const ClusterSpec& cluster, int64_t members);

/// Extent of a dim on each rank: ceil(extent / members).
int64_t shard_extent(int64_t extent, int64_t members);
/// Type of a value on each rank. Pre: a shard's dim is one of the shape.
TensorType local_type(const TensorType& type, Placement placement, int64_t members);

/// Seconds of the collective that turns `from` into `to` for a value of this (whole) type, by ring
/// algorithms (Thakur, Rabenseifner and Gropp, 2005): all_reduce 2 (n-1) steps of 1/n of the bytes,
/// all_gather and reduce_scatter (n-1). 0 where nothing moves. Infinite from anything to partial.
double conversion_seconds(const TensorType& type, Placement from, Placement to, int64_t members,
                          const AxisCosts& costs);

}  // namespace sgactor::graph
