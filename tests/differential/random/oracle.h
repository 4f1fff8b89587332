#pragma once
#include "graph/passes/build_update.h"
#include "tests/differential/random/random_training.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sgactor::differential {

/// Tensors by name, in float64.
using Numbers = std::map<std::string, std::vector<double>>;

/// Tokens and targets of a micro-batch: a function of seed, step, rank and micro-batch.
struct Batch {
  std::vector<int32_t> tokens, targets;
};
Batch draw_batch(const RandomModel& model, uint64_t seed, int64_t step, int32_t rank,
                 int32_t micro_batch);
/// Initial parameters, each a float.
Numbers draw_parameters(const RandomModel& model, uint64_t seed);
/// What a step's losses are divided by.
double inv_valid_tokens(int32_t ranks, int32_t micro_batches);

struct Outcome {
  std::vector<double> losses;  ///< one a step: those of the ranks, as f32, added as f32
  Numbers state;               ///< parameters and moments after the last
};

/// Trains by the definition, in float64 on the reference kernels: no pass but differentiate,
/// accumulate_microbatches and build_update on one rank. Each data-parallel rank adds its
/// micro-batches in order, a parameter's uses are added, then a tree adds the ranks.
Result<Outcome> train_by_definition(const RandomModel& model, uint64_t seed, int32_t ranks,
                                    int32_t micro_batches, int64_t steps,
                                    const graph::OptimizerOptions& optimizer);

}  // namespace sgactor::differential
