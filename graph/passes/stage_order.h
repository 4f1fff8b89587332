#pragma once
#include "graph/plan/plan.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sgactor::graph {

/// A pipeline cut into chunks, chunk c on stage c % num_stages.
struct StageOrderOptions {
  int32_t num_stages = 1;
  int32_t num_micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::vector<double> forward_cost;  ///< one a chunk, any unit
  std::vector<double> backward_cost;
};

/// The forward or backward of one chunk for one micro-batch.
struct StageTask {
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  bool backward = false;
  friend bool operator==(const StageTask&, const StageTask&) = default;
};

/// In which order each stage does its tasks, by a simulation of the pipeline with the given costs:
/// a stage does the ready task that can start first, a backward before a forward, a later chunk
/// before an earlier one.
///   kGPipe        all forwards, then all backwards (Huang et al., 2019)
///   k1F1B         stage s admits a micro-batch while fewer than num_stages - s are in flight on it
///                 (PipeDream-flush, Narayanan et al., 2021)
///   kInterleaved  the same with several chunks a stage and num_chunks / num_stages - 1 more in
///                 flight (Narayanan et al., 2021, section 2.2)
/// A micro-batch that a stage has admitted is never held up by others, so the order always ends.
std::vector<std::vector<StageTask>> order_stages(const StageOrderOptions& options);

/// Cuts a row of costs into `num_parts` runs, none empty, such that the largest sum is least.
/// Returns the part of each. Pre: 1 <= num_parts <= costs.size().
std::vector<int32_t> balance_parts(std::span<const double> costs, int32_t num_parts);

}  // namespace sgactor::graph
