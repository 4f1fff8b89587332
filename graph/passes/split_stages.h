#pragma once
#include "graph/plan/plan.h"

#include <cstdint>
#include <vector>

namespace sgactor::graph {

struct PipelineOptions {
  int32_t num_stages = 1;
  int32_t chunks_per_stage = 1;  ///< kInterleaved: more than one
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  /// By SubgraphId, what the balance goes by, in a unit of which one is next to nothing: FLOPs,
  /// nanoseconds. Empty: FLOPs.
  std::vector<double> subgraph_cost = {};
};

/// Makes the one-program plan of partition_subgraphs (its lane 0 holds all launches) one program a
/// pipeline stage. Segments with forward launches are dealt in order to chunks of about equal cost
/// (as many as chunks_per_stage * num_stages, or one a segment if there are fewer), chunk c to
/// stage c % num_stages.
///
/// A launch runs on its segment's stage. Launches of other segments ("norm") run on all stages, and
/// a parameter that several stages use is prepared, reduced and updated on each of them: its state
/// is there more than once, with the same bits. What a stage reads of another's travels by a send
/// and a receive, one pair for all that one launch makes for one stage; sums of gradients of a
/// parameter's other uses travel before kReduce. Group "pp".
///
/// With one stage it changes nothing. Errors: kInvalidArgument: more stages than segments, or costs
/// of another number of subgraphs;
/// kInvalidPlan.
Status split_stages(Plan& plan, const PipelineOptions& options);

/// Places the logical ranks: tp fastest, then dp, then pp, each on its stage's program (or on the
/// only one).
void place_ranks(Plan& plan, MeshShape mesh);

}  // namespace sgactor::graph
