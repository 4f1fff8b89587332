#pragma once
#include "graph/cluster/cluster_spec.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::apps {

/// Where a cluster's devices would host a plan's ranks: a worker a device, in the order of the
/// cluster file, dealt as `train --workers` deals them. Nothing is run.
struct ClusterFit {
  struct Host {
    std::string name;
    int32_t devices = 0;
    int32_t used = 0;
    std::vector<int32_t> ranks;  ///< logical, by device
  };
  struct Axis {
    std::string name;          ///< "tp", "dp" or "pp"
    int32_t groups = 0;        ///< of the ranks that differ along this axis alone
    int32_t inside_hosts = 0;  ///< of these, those whose ranks are all on one host
  };
  int32_t devices = 0;
  int32_t used = 0;
  int64_t needed_bytes = 0;  ///< arenas of the ranks of the device that hosts most
  int64_t room_bytes = 0;    ///< memory of the smallest device
  std::vector<Host> hosts;
  std::vector<Axis> axes;  ///< of more than one rank, from what exchanges most: tp, dp, pp
  [[nodiscard]] bool fits() const { return needed_bytes <= room_bytes; }
};

ClusterFit cluster_fit(const graph::Plan& plan, const graph::ClusterSpec& cluster);

/// Ascending numbers with runs as "0-7 9 12-15".
std::string print_ranges(std::vector<int32_t> numbers);

}  // namespace sgactor::apps
