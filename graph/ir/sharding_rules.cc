// Sharding rules of pointwise ops, structure, reductions and matmul. The first strategy of each is
// all replicated. Partial results come from sums over a cut dim and pass through linear ops.
#include "graph/ir/sharding_rules.h"

#include "graph/ir/op_table.h"

#include <algorithm>

namespace sgactor::graph {
namespace {

/// May a value of this type lie so, each rank with as much as the others (or padded)?
bool fits(const TensorType& type, Placement p, int64_t members, bool padded) {
  if (!p.is_shard()) return true;
  if (p.dim < 0 || p.dim >= type.shape.rank()) return false;
  const int64_t extent = type.shape.dim(p.dim);
  return extent > 0 && (padded || extent % members == 0);
}

}  // namespace

std::vector<ShardingStrategy> sharding_strategies(OpKind kind, const ShardingContext& context) {
  const ShardingRule* rule = op_info(kind).sharding;
  if (rule == nullptr) return {};
  std::vector<ShardingStrategy> fitting;
  for (ShardingStrategy& s : rule->strategies(context)) {
    bool fit = true;
    for (size_t i = 0; i < s.operands.size(); ++i) {
      fit = fit && fits(context.operands[i], s.operands[i], context.members, s.keeps_padding);
    }
    for (size_t i = 0; i < s.results.size(); ++i) {
      fit = fit && fits(context.results[i], s.results[i], context.members, s.keeps_padding);
    }
    if (fit) fitting.push_back(std::move(s));
  }
  return fitting;
}

std::vector<ShardingStrategy> sharding_strategies(const Graph& graph, const Op& op,
                                                  int64_t members) {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (ValueId v : op.operands) operands.push_back(graph.type(v));
  for (ValueId v : op.results) results.push_back(graph.type(v));
  return sharding_strategies(op.kind, {op.kind, operands, results, op.attrs, members});
}

namespace rules {
namespace {

using Strategies = std::vector<ShardingStrategy>;
using Context = ShardingContext;
constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();
constexpr Placement S(int64_t dim) { return Placement::shard(dim); }

int rank(const TensorType& type) { return type.shape.rank(); }

Strategies replicated(const Context& c) {
  return {{std::vector<Placement>(c.operands.size(), kR),
           std::vector<Placement>(c.results.size(), kR)}};
}

/// f(0) = 0, so that padding stays zero.
bool keeps_zero(OpKind kind) {
  switch (kind) {
    case OpKind::kExp:
    case OpKind::kLog:
    case OpKind::kRsqrt:
    case OpKind::kCos:
    case OpKind::kSigmoid:
    case OpKind::kAddScalar:
    case OpKind::kDiv:
    case OpKind::kPow:
      return false;
    default:
      return true;
  }
}

Strategies binary(const Context& c) {
  Strategies all = replicated(c);
  const int extra = rank(c.operands[0]) - rank(c.operands[1]);
  const bool product = c.kind == OpKind::kMul;
  const bool sum = c.kind == OpKind::kAdd || c.kind == OpKind::kSub;
  for (int d = 0; d < rank(c.operands[0]); ++d) {
    const bool both = d >= extra;  // else the second operand is the same for every index of d
    all.push_back({{S(d), both ? S(d - extra) : kR},
                   {S(d)},
                   std::nullopt,
                   both ? keeps_zero(c.kind) : product || c.kind == OpKind::kDiv});
  }
  if (sum) all.push_back({{kP, kP}, {kP}});
  if (product || c.kind == OpKind::kDiv) all.push_back({{kP, kR}, {kP}});
  if (product) all.push_back({{kR, kP}, {kP}});
  return all;
}

bool is_linear(const Context& c) {
  switch (c.kind) {
    case OpKind::kNeg:
    case OpKind::kScale:
      return true;
    case OpKind::kCast:
      // Parts that were rounded one by one would not add up to the rounded sum.
      return is_float(c.operands[0].dtype) && is_float(c.results[0].dtype) &&
             dtype_bytes(c.results[0].dtype) >= 4 &&
             dtype_bytes(c.results[0].dtype) >= dtype_bytes(c.operands[0].dtype);
    default:
      return false;
  }
}

Strategies unary(const Context& c) {
  Strategies all = replicated(c);
  for (int d = 0; d < rank(c.operands[0]); ++d) {
    all.push_back({{S(d)}, {S(d)}, std::nullopt, keeps_zero(c.kind)});
  }
  if (is_linear(c)) all.push_back({{kP}, {kP}});
  return all;
}

Strategies saved_grad(const Context& c) {
  Strategies all = replicated(c);
  const int dims = rank(c.operands[0]) - (c.kind == OpKind::kSoftmaxGrad ? 1 : 0);
  for (int d = 0; d < dims; ++d) all.push_back({{S(d), S(d)}, {S(d)}, std::nullopt, true});
  all.push_back({{kR, kP}, {kP}});
  return all;
}

/// The first dim of [begin, end) that is more than 1, or -1.
int first_wide(const Shape& shape, int begin, int end) {
  for (int d = begin; d < end; ++d) {
    if (shape.dim(d) > 1) return d;
  }
  return -1;
}

/// Dims fall into groups of equal products from the left; a cut of the outermost dim of a group is
/// a cut of its flat range, which is one of the outermost dim on the other side.
Strategies reshape(const Context& c) {
  Strategies all = replicated(c);
  const Shape& x = c.operands[0].shape;
  const Shape& y = c.results[0].shape;
  if (x.num_elements() == 0) return all;
  int i = 0;
  int j = 0;
  while (i < x.rank() && j < y.rank()) {
    const int x_begin = i;
    const int y_begin = j;
    int64_t x_product = x.dim(i++);
    int64_t y_product = y.dim(j++);
    while (x_product != y_product) {
      if (x_product < y_product) {
        x_product *= x.dim(i++);
      } else {
        y_product *= y.dim(j++);
      }
    }
    const int from = first_wide(x, x_begin, i);
    const int to = first_wide(y, y_begin, j);
    if (from < 0 || to < 0) continue;
    all.push_back({{S(from)}, {S(to)}, std::nullopt, x.dim(from) == y.dim(to)});
  }
  all.push_back({{kP}, {kP}});
  return all;
}

Strategies transpose(const Context& c) {
  Strategies all = replicated(c);
  const std::vector<int64_t>& perm = c.attrs.list("perm");
  for (size_t d = 0; d < perm.size(); ++d) {
    all.push_back({{S(perm[d])}, {S(static_cast<int64_t>(d))}, std::nullopt, true});
  }
  all.push_back({{kP}, {kP}});
  return all;
}

Strategies along_axis(const Context& c) {
  Strategies all = replicated(c);
  const auto everywhere = [&](Placement p) {
    return ShardingStrategy{std::vector<Placement>(c.operands.size(), p), {p}, std::nullopt, true};
  };
  for (int d = 0; d < rank(c.results[0]); ++d) {
    if (d != c.attrs.i64("axis")) all.push_back(everywhere(S(d)));
  }
  all.push_back(everywhere(kP));
  return all;
}

Strategies broadcast(const Context& c) {
  Strategies all = replicated(c);
  const std::vector<int64_t>& axes = c.attrs.list("axes");
  int operand_dim = 0;
  for (int d = 0; d < rank(c.results[0]); ++d) {
    const bool repeated = std::find(axes.begin(), axes.end(), d) != axes.end();
    all.push_back({{repeated ? kR : S(operand_dim++)}, {S(d)}, std::nullopt, !repeated});
  }
  all.push_back({{kP}, {kP}});
  return all;
}

Strategies constant(const Context& c) {
  Strategies all = replicated(c);
  for (int d = 0; d < rank(c.results[0]); ++d) {
    all.push_back({{}, {S(d)}, std::nullopt, c.attrs.f64("value") == 0});
  }
  return all;
}

Strategies reduce(const Context& c) {
  Strategies all = replicated(c);
  const std::vector<int64_t>& axes = c.attrs.list("axes");
  int result_dim = 0;
  for (int d = 0; d < rank(c.operands[0]); ++d) {
    const bool dropped = std::find(axes.begin(), axes.end(), d) != axes.end();
    if (!dropped) {
      all.push_back({{S(d)}, {S(result_dim++)}, std::nullopt, true});
    } else if (c.kind == OpKind::kReduceSum) {
      all.push_back({{S(d)}, {kP}, std::nullopt, true});
    }
  }
  if (c.kind == OpKind::kReduceSum) all.push_back({{kP}, {kP}});
  return all;
}

Strategies tree_sum(const Context& c) {
  Strategies all = replicated(c);
  all.push_back({{kP}, {kP}});
  return all;
}

Strategies accumulate(const Context& c) {
  Strategies all = replicated(c);
  for (int d = 0; d < rank(c.operands[0]); ++d) {
    all.push_back({{S(d), S(d)}, {S(d)}, std::nullopt, true});
  }
  return all;
}

Strategies matmul(const Context& c) {
  Strategies all = replicated(c);
  const int dims = rank(c.results[0]);
  const int first = c.attrs.flag("trans_a") ? 1 : 0;
  const int second = c.attrs.flag("trans_b") ? 1 : 0;
  const int m = dims - 2 + first;
  const int k_of_a = dims - 1 - first;
  const int k_of_b = dims - 2 + second;
  const int n = dims - 1 - second;
  all.push_back({{kR, S(n)}, {S(dims - 1)}, std::nullopt, true});
  all.push_back({{S(m), kR}, {S(dims - 2)}, std::nullopt, true});
  all.push_back({{S(k_of_a), S(k_of_b)}, {kP}, std::nullopt, true});
  for (int d = 0; d < dims - 2; ++d) all.push_back({{S(d), S(d)}, {S(d)}, std::nullopt, true});
  all.push_back({{kP, kR}, {kP}});
  all.push_back({{kR, kP}, {kP}});
  if (c.operands.size() > 2) {
    // What the product is added to lies as the result does; the first strategy has it already.
    for (size_t s = 1; s < all.size(); ++s) all[s].operands.push_back(all[s].results[0]);
  }
  return all;
}

}  // namespace

const ShardingRule kBinarySharding = {binary};
const ShardingRule kUnarySharding = {unary};
const ShardingRule kSavedGradSharding = {saved_grad};
const ShardingRule kReshapeSharding = {reshape};
const ShardingRule kTransposeSharding = {transpose};
const ShardingRule kAlongAxisSharding = {along_axis};
const ShardingRule kBroadcastSharding = {broadcast};
const ShardingRule kConstantSharding = {constant};
const ShardingRule kReduceSumSharding = {reduce};
const ShardingRule kReduceMaxSharding = {reduce};
const ShardingRule kTreeSumSharding = {tree_sum};
const ShardingRule kWholeSharding = {replicated};
const ShardingRule kAccumulateSharding = {accumulate};
const ShardingRule kMatmulSharding = {matmul};

}  // namespace rules
}  // namespace sgactor::graph
