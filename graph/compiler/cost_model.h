#pragma once
#include "graph/cluster/cluster_spec.h"
#include "graph/compiler/explain_schedule.h"
#include "graph/plan/plan.h"

#include <vector>

namespace sgactor::graph {

/// Bytes of the whole tensors that a launch moves: its results where it gathers or receives, else
/// its operands. 0 of a subgraph.
int64_t communication_bytes(const RankProgram& program, const Launch& launch);

/// Seconds of a plan's launches on a machine: a roofline for what computes, rings for what
/// communicates. Logical rank r sits on device r, as in simulate_step. Borrows the plan, of which
/// it reads subgraphs, groups, mesh and ranks; programs may be others than the plan's.
class CostModel {
 public:
  /// `cluster` may be null: the default DeviceModel, and one link of its kind between any two.
  /// Where devices differ, the slowest counts. A cluster with fewer devices than the plan has ranks
  /// is taken to go on as its last host is.
  CostModel(const Plan& plan, const ClusterSpec* cluster);

  [[nodiscard]] double subgraph_seconds(const Subgraph& body) const;
  /// Lower bound of a ring (Patarasuk and Yuan, 2009) over the slowest link of any of the group's
  /// members. Pre: the launch communicates.
  [[nodiscard]] double communication_seconds(const RankProgram& program,
                                             const Launch& launch) const;
  /// The same of any operation of that kind and size in a group of so many members, the slowest of
  /// the plan's; 0 if it has none.
  [[nodiscard]] double communication_seconds(LaunchKind kind, int64_t bytes, int32_t members) const;

 private:
  [[nodiscard]] double seconds_in(size_t group, LaunchKind kind, int64_t bytes) const;
  void place_groups(const ClusterSpec& cluster);

  const Plan& plan_;
  DeviceModel device_;
  std::vector<LinkSpec> links_;  // by group
};

}  // namespace sgactor::graph
