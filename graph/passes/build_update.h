#pragma once
#include "graph/ir/graph.h"
#include "graph/ir/parameter.h"
#include "graph/passes/data_parallel.h"

#include <string>
#include <vector>

namespace sgactor::graph {

/// AdamW with decoupled decay (Loshchilov and Hutter, 2019, in PyTorch's form: eps outside the
/// bias-corrected root), linear warm-up, cosine to min_lr, clipping by global norm (coefficient
/// min(1, max / (norm + 1e-6))). Step s (the first is 1) has the rate
///   min(1, s / warmup_steps) * (min_lr + (lr - min_lr) * (1 + cos(pi * t)) / 2),
///   t = clamp((s - warmup_steps) / (decay_steps - warmup_steps), 0, 1);
/// without warm-up (warmup_steps <= 0) the first factor is 1, and where decay_steps <=
/// warmup_steps the rate stays at lr after the warm-up.
struct OptimizerOptions {
  double lr = 3e-3;
  double min_lr = 3e-4;
  int64_t warmup_steps = 10;
  int64_t decay_steps = 100;  ///< step at which the cosine reaches min_lr
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;  ///< <= 0: no clipping
  /// Elements a chunk of the gradient norm's fixed sum; shards are cut on them too. 0: from the
  /// size of the model (norm_chunk_of).
  int64_t norm_chunk = 0;
};
/// The power of two in [256, 65536] that cuts `num_elements` into at most about 2^15 chunks.
int64_t norm_chunk_of(int64_t num_elements);

/// A parameter of the update. `num_uses` is the number of its accumulators; `segment` the segment
/// it is updated in.
struct UpdateParameter {
  ParameterSpec spec;  ///< as one rank of tp holds it, before any cut along dp
  int32_t num_uses = 1;
  std::string segment;
  bool reduced = false;  ///< its accumulator is the rank's piece of the sum over dp already
  bool tp_sharded = false;
  bool squared = false;  ///< the chunk sums of its gradient come with it ("squares/<p>")
};
/// Parameters of `specs` that `training` has accumulators for ("grad/<p>", "grad/<p>#1" …), in the
/// order of `specs`; each in the segment of the first op that uses it. Errors: kInvalidPlan: an
/// accumulator of a parameter that `specs` does not name, or of another shape than the parameter's
/// or its piece's.
Result<std::vector<UpdateParameter>> collect_update_parameters(
    const Graph& training, const std::vector<ParameterSpec>& specs,
    const DataParallel& data_parallel = {});

/// The update graph of a step. Inputs: parameters, moments "m/<p>", "v/<p>", accumulators (as the
/// training graph outputs them), scalar "step" f64. Outputs: parameters, moments, metrics
/// "grad_norm" and "lr" (f32). Primitive ops, the scalar arithmetic of the schedule in f64.
///
/// Phase kReduce, in the parameter's segment: g = its uses' accumulators added in order of use
/// (with one use: the accumulator), sum_squares(g) of each (or what comes in), concatenated. Phase
/// kReduce, segment "norm": the chunks of all segments, in order of first parameter, in one
/// tree_sum; norm, clip coefficient, learning rate, bias corrections, rounded to f32. Phase
/// kUpdate, in the parameter's segment, f32:
///   gc = g * clip
///   m' = m * beta1 + gc * (1 - beta1)             add(scale(m), scale(gc))
///   v' = v * beta2 + gc^2 * (1 - beta2)           add(scale(v), scale(square(gc)))
///   p' = p * (lr * -decay + 1) - (m' * (lr / bias1)) / (sqrt(v') / sqrt(bias2) + eps)
/// where a parameter that does not decay has decay 0.
///
/// With dp > 1 the sums g go over group "dp", those of a segment in one operation: all_reduce, or
/// reduce_scatter where optimizer state is sharded; then all of the update works on the rank's flat
/// pieces, and the chunk sums of all ranks are gathered before the same tree adds them, so that the
/// norm has the same bits in every stage. With parameters cut along tp, the squares of those are
/// all_reduced over group "tp". Errors: kInvalidArgument naming the option;
/// kInvalidPlan: no parameters, two of one name, or one that is not f32.
Result<Graph> build_update(const std::vector<UpdateParameter>& parameters,
                           const OptimizerOptions& options, const DataParallel& data_parallel = {});

}  // namespace sgactor::graph
