#pragma once
#include "graph/base/shape.h"
#include "graph/ir/graph.h"
#include "graph/ir/placement.h"

#include <optional>
#include <span>
#include <vector>

namespace sgactor::graph {

/// One way to run an op on the ranks of a mesh axis without communication inside (but for the loss
/// over a cut vocabulary): operands placed so give results placed so.
struct ShardingStrategy {
  std::vector<Placement> operands;
  std::vector<Placement> results;
  /// The op that each rank runs, if it is another one: it takes the rank's index as one more
  /// operand. kCrossEntropyShard stands for the whole chain of the loss.
  std::optional<OpKind> local = std::nullopt;
  /// Where operands are padded with zeros, so are the results; without, extents must divide.
  bool keeps_padding = false;
};

/// What a rule sees: whole types.
struct ShardingContext {
  OpKind kind;
  std::span<const TensorType> operands;
  std::span<const TensorType> results;
  const Attrs& attrs;
  int64_t members;
};

/// The sharding column of the op table. The strategies are listed by rule functions without care
/// for extents that do not divide; sharding_strategies() drops those that the extents forbid.
struct ShardingRule {
  std::vector<ShardingStrategy> (*strategies)(const ShardingContext& context);
};

/// The strategies of an op for `members` ranks; the first has everything replicated. Empty: the op
/// has no rule. Pre: the op verifies.
std::vector<ShardingStrategy> sharding_strategies(const Graph& graph, const Op& op,
                                                  int64_t members);
std::vector<ShardingStrategy> sharding_strategies(OpKind kind, const ShardingContext& context);

namespace rules {

extern const ShardingRule kBinarySharding;  ///< pointwise, two operands
extern const ShardingRule kUnarySharding;   ///< pointwise, one operand
/// Saved value, gradient: linear in the gradient; rows along the last dim stay whole.
extern const ShardingRule kSavedGradSharding;
extern const ShardingRule kReshapeSharding;
extern const ShardingRule kTransposeSharding;
extern const ShardingRule kAlongAxisSharding;  ///< slice, pad, concat: any dim but the axis
extern const ShardingRule kBroadcastSharding;
extern const ShardingRule kConstantSharding;
extern const ShardingRule kReduceSumSharding;
extern const ShardingRule kReduceMaxSharding;
extern const ShardingRule kTreeSumSharding;
extern const ShardingRule kWholeSharding;  ///< replicated only
extern const ShardingRule kAccumulateSharding;
extern const ShardingRule kMatmulSharding;
extern const ShardingRule kSoftmaxSharding;
extern const ShardingRule kCausalMaskSharding;
extern const ShardingRule kRmsNormSharding;
extern const ShardingRule kRmsNormGradSharding;
extern const ShardingRule kRotateSharding;
extern const ShardingRule kGatherSharding;
extern const ShardingRule kScatterAddSharding;
extern const ShardingRule kCrossEntropySharding;
extern const ShardingRule kCrossEntropyGradSharding;

}  // namespace rules
}  // namespace sgactor::graph
