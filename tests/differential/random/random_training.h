#pragma once
#include "graph/ir/graph.h"
#include "graph/ir/parameter.h"
#include "graph/sharding/parameter_rule.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sgactor::differential {

/// Tokens a micro-batch of a random model has: kBatch sequences of kSeqLen.
inline constexpr int64_t kBatch = 2;
inline constexpr int64_t kSeqLen = 3;

/// A model that no person would write: differentiable ops in random order over an embedding, a few
/// layers and a head, with parameters of one and several uses, residuals, and pieces of what real
/// models have (attention, SwiGLU, norms), some of them a little off, so that patterns of fusion
/// nearly match.
struct RandomModel {
  graph::Graph forward;  ///< a scalar kLoss that adds up over micro-batches
  std::vector<graph::ParameterSpec> parameters;
  /// How parameters may be cut over two ranks; some are not.
  std::vector<graph::ParameterRule> rules;
  int64_t vocab_size = 0;
};

/// A pure function of the seed. Values stay of the order of one.
RandomModel random_model(uint64_t seed);

}  // namespace sgactor::differential
