#pragma once
#include "graph/ir/graph.h"
#include "graph/ir/placement.h"
#include "graph/ir/sharding_rules.h"
#include "graph/sharding/costs.h"
#include "graph/sharding/parameter_rule.h"

#include <string>
#include <string_view>
#include <vector>

namespace sgactor::graph {

/// The Llama family's table (Megatron-LM: Shoeybi et al., 2019, section 3): q, k, v, gate, up and
/// their biases by output, o and down by input, embedding and head by vocabulary, the rest
/// replicated.
std::vector<ParameterRule> llama_parameter_rules(int64_t num_heads, int64_t num_key_value_heads);

struct ShardingOptions {
  int32_t members = 1;       ///< ranks along the axis
  std::string group = "tp";  ///< of the collectives
  std::vector<ParameterRule> rules;
  AxisCosts costs;
};

/// Where a parameter lies. Its moments and gradients lie alike.
struct ParameterSharding {
  std::string name;
  int32_t tp_dim = -1;  ///< the dim it is cut along, as StateSlice::tp_dim; -1: replicated
  TensorType full;      ///< as checkpoints name it
  TensorType local;     ///< of each rank: `tp_dim` is ceil(extent / members), the last ranks' rest
                        ///< is zeros, and its gradient there is zero
};

/// How an op runs: one row of its rule, and the placements the graph gives it.
struct ShardedOp {
  ShardingStrategy strategy;
  double cost_s = 0;  ///< of the conversions of its operands and the op itself, as estimated
};

/// What apply_sharding decided for a graph, which stays as it is.
struct ShardingDecisions {
  std::vector<Placement> inputs;              ///< one an input of the graph
  std::vector<ShardedOp> ops;                 ///< one an op
  std::vector<Placement> outputs;             ///< one an output: what it must be turned into
  std::vector<ParameterSharding> parameters;  ///< one a parameter input, in order
};

/// One rank's graph of a sharded training step; the same on every rank of the axis.
struct ShardedTraining {
  /// Local shapes, collectives over the group. Where ranks differ (vocabulary, slices), a scalar
  /// input kScalar "tp_index" i32[] says which rank this is ("<group>_index").
  Graph graph;
  std::vector<ParameterSharding> parameters;
};

/// Chooses a strategy for each op of a training or forward graph of primitive ops, in order, so
/// that converting its operands, running it and what its results will need costs least; ties go to
/// the earlier row of the rule. Parameters stay cut: none is gathered while any strategy does
/// without. Gradient outputs get their parameter's placement, other outputs are replicated. The
/// idea of propagating by rules is GSPMD's (Xu et al., 2021); rows of strategies are PyTorch
/// DTensor's. Pure and deterministic. Errors: kInvalidArgument: members < 1, a rule whose dim a
/// parameter lacks, units (heads) that the members do not divide, naming both; kUnsupported naming
/// an op without a sharding rule.
Result<ShardingDecisions> apply_sharding(const Graph& training, const ShardingOptions& options);

/// apply_sharding and insert_collectives. With one member: the graph as it is.
Result<ShardedTraining> shard_training(const Graph& training, const ShardingOptions& options);

/// A line an op whose operands are converted, for --dump-ir and `sgactor plan`.
std::vector<std::string> explain_sharding(const Graph& training,
                                          const ShardingDecisions& decisions);

}  // namespace sgactor::graph
