#pragma once
#include "graph/ir/graph.h"
#include "graph/ir/parameter.h"

#include <string>
#include <vector>

namespace sgactor::graph {

/// AdamW with decoupled decay (Loshchilov and Hutter, 2019, in PyTorch's form: eps outside the
/// bias-corrected root), linear warm-up, cosine to min_lr, clipping by global norm (coefficient
/// min(1, max / (norm + 1e-6))).
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
  int64_t norm_chunk = 65536;  ///< elements a chunk of the gradient norm's fixed sum
};

/// The update graph of a step. Inputs: parameters, moments "m/<p>", "v/<p>", accumulators (as the
/// training graph outputs them), scalar "step" f64. Outputs: parameters, moments, metrics
/// "grad_norm" and "lr" (f32). Phase kReduce: sums of the uses' accumulators, chunked sum of
/// squares, norm, clip coefficient, learning rate; phase kUpdate: the rest, in the segment of the
/// parameter. Primitive ops, the scalar arithmetic in f64. `uses[p]` is the number of accumulators
/// of parameter p; `segments[p]` the segment it is updated in.
struct UpdateParameter {
  ParameterSpec spec;
  int32_t num_uses = 1;
  std::string segment;
};
Result<Graph> build_update(const std::vector<UpdateParameter>& parameters,
                           const OptimizerOptions& options);

}  // namespace sgactor::graph
