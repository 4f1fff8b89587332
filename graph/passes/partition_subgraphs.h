#pragma once
#include "graph/ir/graph.h"
#include "graph/plan/plan.h"

namespace sgactor::graph {

/// Cuts the training graph and the update graph at phase and segment boundaries into launches,
/// gives identical pieces (by structure_hash) one Subgraph, and lays down the one planned order of
/// the compute lane: for each micro-batch forward 0..L then backward L..0, then reduce, then
/// update. Creates buffers without offsets. A kMust alias of the body becomes one buffer. Post:
/// everything of verify_plan but the memory rules holds.
Result<Plan> partition_subgraphs(const Graph& training, const Graph& update,
                                 int32_t num_micro_batches, StorageModel storage);

/// The same for a graph that only runs forward (validation, generation).
Result<Plan> partition_forward(const Graph& forward, StorageModel storage);

}  // namespace sgactor::graph
