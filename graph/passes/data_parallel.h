#pragma once
#include "graph/ir/graph.h"

#include <cstdint>

namespace sgactor::graph {

/// How the training step lies over the data-parallel axis of the mesh. Stages of ZeRO (Rajbhandari
/// et al., 2020): 0 replicates all; 1 shards optimizer state and master weights, 2 gradients too,
/// 3 parameters too.
struct DataParallel {
  int32_t degree = 1;  ///< logical ranks along dp
  int32_t zero_stage = 0;
  int64_t chunk = 65536;  ///< elements; shards are cut on multiples, as the gradient norm's chunks
  int32_t num_micro_batches = 1;

  /// Is there anything to shard?
  [[nodiscard]] bool shards_state() const { return zero_stage >= 1 && degree > 1; }
  /// Are gradients reduced to shards as they are made? With several micro-batches the exact sum
  /// adds a rank's micro-batches first, so the whole gradient must stay.
  [[nodiscard]] bool shards_gradients() const {
    return zero_stage >= 2 && degree > 1 && num_micro_batches == 1;
  }
  /// Elements of a flat tensor of `elements` that a rank holds, with padding.
  [[nodiscard]] int64_t piece(int64_t elements) const;
};

/// Rewrites a training graph (after differentiate, before accumulate_microbatches). Does nothing
/// for stage 0: its gradients are reduced in the update graph (build_update).
///
/// Every parameter input becomes its flat shard f32[piece]. Stages 1 and 2 gather it once a step
/// (phase kPrepare), stage 3 once for each phase and segment that uses it (the gathered tensor is
/// gone in between); the parameters of a segment are one all_gather. With shards_gradients(), the
/// gradients of parameters that are used once go through one reduce_scatter a segment and their
/// outputs become f32[piece]. A parameter with several uses keeps whole gradients: the sum adds the
/// uses of a rank first.
///
/// Names of inputs and outputs stay. Group "dp". Errors: kInvalidPlan: a gradient that is not f32
/// or f64.
Result<Graph> apply_data_parallel(const Graph& training, const DataParallel& options);

}  // namespace sgactor::graph
