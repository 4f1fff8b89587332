#pragma once
#include "graph/ir/graph.h"
#include "graph/models/llama.h"
#include "tests/unit/graph/passes/run_plan.h"

#include <cstdint>

namespace sgactor::graph {

/// Models of a few thousand parameters for numeric tests of passes.
LlamaConfig tiny_config(bool tied, bool grouped);

/// Random parameters, zero moments and accumulators, and the run's scalars, by name. A pure
/// function of the arguments.
Values random_state(const LlamaConfig& config, uint64_t seed);
/// Tokens and targets; some targets are negative.
Values random_batch(const LlamaConfig& config, const ForwardOptions& forward, uint64_t seed);

}  // namespace sgactor::graph
