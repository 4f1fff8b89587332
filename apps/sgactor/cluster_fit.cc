#include "apps/sgactor/cluster_fit.h"

#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace sgactor::apps {
namespace {

using graph::RankPlacement;

/// `host_of`: index: logical rank. `without` leaves out the coordinate of the axis.
template <class F>
ClusterFit::Axis axis_of(const char* name, const graph::Plan& plan,
                         const std::vector<int32_t>& host_of, F&& without) {
  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, bool>> groups;  // first host, inside
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto [at, fresh] = groups.try_emplace(without(plan.ranks[r]), host_of[r], true);
    if (!fresh && at->second.first != host_of[r]) at->second.second = false;
  }
  ClusterFit::Axis axis{name, static_cast<int32_t>(groups.size()), 0};
  for (const auto& [key, group] : groups) axis.inside_hosts += group.second ? 1 : 0;
  return axis;
}

}  // namespace

ClusterFit cluster_fit(const graph::Plan& plan, const graph::ClusterSpec& cluster) {
  ClusterFit fit;
  fit.devices = cluster.num_devices();
  fit.used = std::min(fit.devices, plan.mesh.num_ranks());
  fit.room_bytes = std::numeric_limits<int64_t>::max();
  const auto dealt = deal_ranks(plan, fit.used);
  std::vector<int32_t> host_of(plan.ranks.size());
  size_t worker = 0;
  for (const graph::HostSpec& spec : cluster.hosts) {
    ClusterFit::Host& host = fit.hosts.emplace_back();
    host.name = spec.name;
    host.devices = static_cast<int32_t>(spec.devices.size());
    for (const graph::DeviceSpec& device : spec.devices) {
      fit.room_bytes = std::min(fit.room_bytes, device.memory_bytes);
      if (worker == dealt.size()) continue;
      const std::vector<int32_t>& ranks = dealt[worker++];
      ++host.used;
      fit.needed_bytes = std::max(fit.needed_bytes, held_bytes(plan, ranks));
      host.ranks.insert(host.ranks.end(), ranks.begin(), ranks.end());
      for (const int32_t r : ranks)
        host_of[static_cast<size_t>(r)] = static_cast<int32_t>(fit.hosts.size());
    }
  }
  if (plan.mesh.tp > 1) {
    fit.axes.push_back(
        axis_of("tp", plan, host_of, [](const RankPlacement& r) { return std::pair(r.pp, r.dp); }));
  }
  if (plan.mesh.dp > 1) {
    fit.axes.push_back(
        axis_of("dp", plan, host_of, [](const RankPlacement& r) { return std::pair(r.pp, r.tp); }));
  }
  if (plan.mesh.pp > 1) {
    fit.axes.push_back(
        axis_of("pp", plan, host_of, [](const RankPlacement& r) { return std::pair(r.dp, r.tp); }));
  }
  return fit;
}

std::string print_ranges(std::vector<int32_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ' ';
    text += end - i > 1 ? fmt::format("{}-{}", numbers[i], numbers[end - 1])
                        : fmt::format("{}", numbers[i]);
    i = end;
  }
  return text;
}

}  // namespace sgactor::apps
