#include "graph/compiler/cost_model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr double kDefaultLatency = 5e-6;  // as AxisCosts

int32_t num_members(const Plan& plan, const RankGroup& group) {
  if (!group.coordinates.empty()) return static_cast<int32_t>(group.coordinates.size());
  return group.axis == MeshAxis::kPp   ? plan.mesh.pp
         : group.axis == MeshAxis::kDp ? plan.mesh.dp
                                       : plan.mesh.tp;
}

/// Place of a rank on the axes other than `axis`: ranks of one group have the same.
std::pair<int32_t, int32_t> other_axes(const RankPlacement& p, MeshAxis axis) {
  if (axis == MeshAxis::kPp) return {p.dp, p.tp};
  if (axis == MeshAxis::kDp) return {p.pp, p.tp};
  return {p.pp, p.dp};
}

LinkSpec slower(const LinkSpec& a, const LinkSpec& b) {
  return {std::min(a.bytes_per_s, b.bytes_per_s), std::max(a.latency_s, b.latency_s)};
}

}  // namespace

int64_t communication_bytes(const RankProgram& program, const Launch& launch) {
  int64_t bytes = 0;
  const auto add = [&](BufferId b) {
    bytes += program.buffers[static_cast<size_t>(b)].type.bytes();
  };
  if (launch.kind == LaunchKind::kSubgraph) return 0;
  if (launch.kind == LaunchKind::kAllGather || launch.kind == LaunchKind::kRecv) {
    for (BufferId b : launch.outputs) add(b);
  } else {
    for (const LaunchInput& input : launch.inputs) add(input.buffer);
  }
  return bytes;
}

CostModel::CostModel(const Plan& plan, const ClusterSpec* cluster)
    : plan_(plan),
      links_(plan.groups.size(), LinkSpec{DeviceModel{}.link_bytes_per_s, kDefaultLatency}) {
  if (cluster == nullptr || cluster->num_devices() == 0) return;
  device_.flops_per_s = device_.bytes_per_s = std::numeric_limits<double>::infinity();
  for (const HostSpec& host : cluster->hosts) {
    for (const DeviceSpec& d : host.devices) {
      device_.flops_per_s = std::min(device_.flops_per_s, d.flops_per_s);
      device_.bytes_per_s = std::min(device_.bytes_per_s, d.memory_bytes_per_s);
    }
  }
  place_groups(*cluster);
}

void CostModel::place_groups(const ClusterSpec& cluster) {
  std::vector<size_t> host_of;  // by device
  for (size_t h = 0; h < cluster.hosts.size(); ++h) {
    host_of.insert(host_of.end(), cluster.hosts[h].devices.size(), h);
  }
  const auto host = [&](size_t rank) { return host_of[std::min(rank, host_of.size() - 1)]; };
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    std::map<std::pair<int32_t, int32_t>, size_t> first;  // host of a group's first rank
    LinkSpec slowest{std::numeric_limits<double>::infinity(), 0};
    for (size_t r = 0; r < plan_.ranks.size(); ++r) {
      const auto [at, fresh] =
          first.try_emplace(other_axes(plan_.ranks[r], plan_.groups[g].axis), host(r));
      slowest =
          slower(slowest, at->second == host(r) ? cluster.hosts[host(r)].link : cluster.network);
    }
    links_[g] = slowest;
  }
}

double CostModel::subgraph_seconds(const Subgraph& body) const {
  return device_.launch_s + std::max(body.flops / device_.flops_per_s,
                                     static_cast<double>(body.bytes_moved) / device_.bytes_per_s);
}

double CostModel::seconds_in(size_t group, LaunchKind kind, int64_t moved) const {
  const LinkSpec& link = links_[group];
  const auto bytes = static_cast<double>(moved);
  if (kind == LaunchKind::kSend || kind == LaunchKind::kRecv) {
    return device_.launch_s + link.latency_s + bytes / link.bytes_per_s;
  }
  const double n = num_members(plan_, plan_.groups[group]);
  const double once = link.latency_s * (n - 1) + bytes * (n - 1) / n / link.bytes_per_s;
  return device_.launch_s + (kind == LaunchKind::kAllReduce ? 2 * once : once);
}

double CostModel::communication_seconds(const RankProgram& program, const Launch& launch) const {
  return seconds_in(static_cast<size_t>(launch.communication.group), launch.kind,
                    communication_bytes(program, launch));
}

double CostModel::communication_seconds(LaunchKind kind, int64_t bytes, int32_t members) const {
  double slowest = 0;
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    if (num_members(plan_, plan_.groups[g]) == members)
      slowest = std::max(slowest, seconds_in(g, kind, bytes));
  }
  return slowest;
}

}  // namespace sgactor::graph
