// Sharding rules of the pieces of a transformer. Letters as in op_table.cc. Rows over the
// vocabulary follow Megatron-LM (Shoeybi et al., 2019, section 3).
#include "graph/ir/sharding_rules.h"

namespace sgactor::graph::rules {
namespace {

using Strategies = std::vector<ShardingStrategy>;
using Context = ShardingContext;
constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();
constexpr Placement S(int64_t dim) { return Placement::shard(dim); }

Strategies replicated(const Context& c) {
  return {{std::vector<Placement>(c.operands.size(), kR),
           std::vector<Placement>(c.results.size(), kR)}};
}

/// Dims in front of the last `kept` ones.
int leading(const TensorType& type, int kept) { return type.shape.rank() - kept; }

Strategies softmax(const Context& c) {
  Strategies all = replicated(c);
  for (int d = 0; d < leading(c.operands[0], 1); ++d) all.push_back({{S(d)}, {S(d)}});
  return all;
}

Strategies causal_mask(const Context& c) {
  Strategies all = replicated(c);
  const bool zero = c.attrs.f64("fill") == 0;
  for (int d = 0; d < leading(c.operands[0], 2); ++d) {
    all.push_back({{S(d)}, {S(d)}, std::nullopt, zero});
  }
  if (zero) all.push_back({{kP}, {kP}});
  return all;
}

Strategies rms_norm(const Context& c) {
  Strategies all = replicated(c);
  for (int d = 0; d < leading(c.operands[0], 1); ++d) all.push_back({{S(d), kR}, {S(d), S(d)}});
  return all;
}

Strategies rms_norm_grad(const Context& c) {
  Strategies all = replicated(c);
  for (int d = 0; d < leading(c.operands[0], 1); ++d) {
    all.push_back({{S(d), S(d), kR, S(d)}, {S(d), kP}, std::nullopt, true});
  }
  all.push_back({{kP, kR, kR, kR}, {kP, kP}});
  return all;
}

Strategies rotate(const Context& c) {
  Strategies all = replicated(c);
  all.push_back({{S(2), kR, kR}, {S(2)}, std::nullopt, true});
  all.push_back({{S(0), kR, kR}, {S(0)}, std::nullopt, true});
  all.push_back({{S(1), S(0), S(0)}, {S(1)}, std::nullopt, true});
  all.push_back({{kP, kR, kR}, {kP}});
  return all;
}

Strategies gather(const Context& c) {
  Strategies all = replicated(c);
  all.push_back({{S(0), kR}, {kP}, OpKind::kGatherShard, true});
  all.push_back({{S(1), kR}, {S(leading(c.results[0], 1))}, std::nullopt, true});
  for (int d = 0; d < c.operands[1].shape.rank(); ++d) all.push_back({{kR, S(d)}, {S(d)}});
  all.push_back({{kP, kR}, {kP}});
  return all;
}

Strategies scatter_add(const Context& c) {
  Strategies all = replicated(c);
  all.push_back({{kR, kR}, {S(0)}, OpKind::kScatterAddShard, true});
  all.push_back({{kR, S(leading(c.operands[1], 1))}, {S(1)}, std::nullopt, true});
  for (int d = 0; d < c.operands[0].shape.rank(); ++d) all.push_back({{S(d), S(d)}, {kP}});
  all.push_back({{kR, kP}, {kP}});
  return all;
}

Strategies cross_entropy(const Context& c) {
  Strategies all = replicated(c);
  all.push_back({{S(1), kR}, {kR, kR}, OpKind::kCrossEntropyShard, true});
  all.push_back({{S(0), S(0)}, {kP, S(0)}});
  return all;
}

Strategies cross_entropy_grad(const Context& c) {
  Strategies all = replicated(c);
  all.push_back({{S(1), kR, kR, kR}, {S(1)}, OpKind::kCrossEntropyShardGrad, true});
  all.push_back({{S(0), S(0), S(0), kR}, {S(0)}});
  all.push_back({{kR, kR, kR, kP}, {kP}});
  return all;
}

}  // namespace

const ShardingRule kSoftmaxSharding = {softmax};
const ShardingRule kCausalMaskSharding = {causal_mask};
const ShardingRule kRmsNormSharding = {rms_norm};
const ShardingRule kRmsNormGradSharding = {rms_norm_grad};
const ShardingRule kRotateSharding = {rotate};
const ShardingRule kGatherSharding = {gather};
const ShardingRule kScatterAddSharding = {scatter_add};
const ShardingRule kCrossEntropySharding = {cross_entropy};
const ShardingRule kCrossEntropyGradSharding = {cross_entropy_grad};

}  // namespace sgactor::graph::rules
