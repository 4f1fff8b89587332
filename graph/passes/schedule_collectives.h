#pragma once
#include "graph/plan/plan.h"

#include <cstdint>

namespace sgactor::graph {

struct ScheduleOptions {
  /// Firings of lane 0 ahead of the one that needs it at which a gather or a receive may start. 0:
  /// while the firing before it runs.
  int32_t prefetch = 1;
  /// Firings of lane 0 for which the operands of a communication count as live behind its start.
  /// More overlaps more and takes more memory; what takes longer makes lane 0 wait.
  int32_t slack = 2;
  /// Bytes of a bucket (bucket_collectives). 0: what one segment gathers or sums at once.
  int64_t bucket_bytes = 0;
};

/// Gives the launches that communicate lanes of their own. Pre: lane 0 of each program holds all
/// firings in an order that can run (partition_subgraphs, split_stages). What waits for a result of
/// lane 0 starts as soon as that is launched; gathers of state and receives start `prefetch`
/// firings before their first reader. With `bucket_bytes`, operations of dp are cut anew first.
/// Lanes: "<group>.gather", "<group>.reduce", "pp.send.<peer>",
/// "pp.recv.<peer>", and, with more than 16 stages, "pp.send.sums" and "pp.recv.sums" for what
/// travels once a step, each in order of start. Sets the buffers' live ranges and numbers of slots.
/// Post: verify_structure(plan) is ok. Errors: kInvalidPlan.
Status schedule_collectives(Plan& plan, const ScheduleOptions& options = {});

/// The buckets and lanes of schedule_collectives alone, to time a choice: neither live ranges nor
/// slots, and nothing is checked. Reads no subgraph.
void lay_lanes(Plan& plan, const ScheduleOptions& options);

/// Buffer::first_use and last_use from the lanes' orders.
void assign_live_ranges(RankProgram& program);

}  // namespace sgactor::graph
