#pragma once
#include "graph/passes/apply_sharding.h"

namespace sgactor::graph {

/// The graph that each rank runs: every op as its strategy says, on local shapes, and a conversion
/// where an operand lies otherwise than the strategy wants it. A conversion is made once, before
/// the first op that needs it, in that op's phase and in the segment of the value's producer (in
/// the backward, of what a forward made, the later of producer's and reader's):
///   partial -> replicate  all_reduce
///   partial -> shard      reduce_scatter (behind a transpose that puts the dim first)
///   shard   -> replicate  all_gather (likewise)
///   replicate -> shard    slice_shard, no communication
///   shard(a) -> shard(b)  all_gather, slice_shard
/// The loss over a cut vocabulary becomes cross_entropy_max, all_reduce of the maxima,
/// cross_entropy_shard, all_reduce of its sums, cross_entropy_combine (Megatron-LM's
/// vocab_parallel_cross_entropy). Partial sums that are added to each other are
/// added before they are reduced. Errors: kInvalidPlan: `decisions` are not this graph's.
Result<ShardedTraining> insert_collectives(const Graph& training,
                                           const ShardingDecisions& decisions,
                                           const ShardingOptions& options);

}  // namespace sgactor::graph
