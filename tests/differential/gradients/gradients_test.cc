// Gradient rules against central differences of the float64 reference. For an op y = f(x) and fixed
// weights w, dL/dx of L = sum(w * y) is what the rule appends when it is given w as the gradient of
// y. Central differences: Nocedal and Wright, "Numerical Optimization", ch. 8.1.
#include "kernels/reference/reference_backend.h"
#include "tests/conformance/op_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace sgactor::testing {
namespace {

using graph::OpInfo;
using graph::OpKind;
using graph::ValueId;
using kernels::run_reference;

constexpr int kCasesPerOp = 15;
constexpr double kStep = 1e-6;
/// Rounding in L over the step, about 1e-16 * |L| / kStep, is far below it; so is the third
/// derivative's part.
constexpr double kTolerance = 1e-6;

using Numbers = std::vector<std::vector<double>>;

/// What a rule is not asked for, by the op table: results that carry no gradient and float operands
/// that get none. Everything else must be there.
struct Exceptions {
  std::vector<size_t> results;
  std::vector<size_t> operands;
};
Exceptions exceptions_of(OpKind kind) {
  switch (kind) {
    case OpKind::kRmsNorm:
    case OpKind::kCrossEntropy:
      return {.results = {1}, .operands = {}};
    case OpKind::kRotate:
      return {.results = {}, .operands = {1, 2}};
    default:
      return {};
  }
}
bool contains(const std::vector<size_t>& list, size_t x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

OpCase differentiable_case(OpKind kind, uint64_t seed) {
  PhiloxDraw draw(seed + (1000 * static_cast<uint64_t>(kind)));
  return make_case(
      kind, {.dtype = DType::kF64, .max_dim = 4, .max_elements = 48, .differentiable = true}, draw);
}

/// L for the given inputs and weights (empty: result has none).
Result<double> weighted_sum(const OpCase& c, const Numbers& inputs, const Numbers& weights) {
  SGA_ASSIGN(const Numbers results, run_reference(c.graph, inputs));
  double sum = 0;
  for (size_t r = 0; r < results.size(); ++r) {
    for (size_t i = 0; i < weights[r].size(); ++i) sum += weights[r][i] * results[r][i];
  }
  return sum;
}

Numbers draw_weights(const OpCase& c, const Exceptions& skip, uint64_t seed) {
  Numbers weights;
  const PhiloxStream stream{seed, 0x77656967687473};
  for (size_t r = 0; r < c.graph.outputs().size(); ++r) {
    const TensorType& type = c.graph.type(c.graph.outputs()[r].value);
    weights.emplace_back();
    if (!is_float(type.dtype) || contains(skip.results, r)) continue;
    for (int64_t i = 0; i < type.num_elements(); ++i)
      weights[r].push_back((2 * stream.uniform(static_cast<uint64_t>(i) + (1000 * r))) - 1);
  }
  return weights;
}

/// Expects `gradient` of input `j` to be the slope of L along each of its elements.
void expect_slopes(const OpCase& c, const Numbers& weights, size_t j,
                   const std::vector<double>& gradient) {
  Numbers inputs = c.inputs;
  for (size_t i = 0; i < inputs[j].size(); ++i) {
    const double x = inputs[j][i];
    inputs[j][i] = x + kStep;
    const Result<double> above = weighted_sum(c, inputs, weights);
    inputs[j][i] = x - kStep;
    const Result<double> below = weighted_sum(c, inputs, weights);
    inputs[j][i] = x;
    ASSERT_TRUE(above.ok() && below.ok()) << above.status().to_string();
    const double slope = (*above - *below) / (2 * kStep);
    const double scale = std::max({1.0, std::fabs(slope), std::fabs(gradient[i])});
    ASSERT_LE(std::fabs(slope - gradient[i]), kTolerance * scale)
        << "input " << j << ", element " << i << ": slope " << slope << ", gradient "
        << gradient[i];
  }
}

/// The case's graph with the gradients of some operands as its outputs.
struct Backward {
  graph::Graph graph;
  Numbers inputs;             ///< the case's, then the weights
  std::vector<size_t> given;  ///< which operands the outputs belong to
};

Backward start_backward(const OpCase& c) {
  Backward backward{.graph = c.graph, .inputs = c.inputs, .given = {}};
  backward.graph.clear_outputs();
  return backward;
}

/// Adds an input for each result that has weights.
std::vector<ValueId> add_weights(Backward& backward, graph::Builder& builder, const graph::Op& op,
                                 const Numbers& weights) {
  std::vector<ValueId> w(op.results.size(), graph::kNoValue);
  for (size_t r = 0; r < w.size(); ++r) {
    if (weights[r].empty()) continue;
    w[r] = builder.input(builder.type(op.results[r]), graph::Role::kActivation, numbered("w", r));
    backward.inputs.push_back(weights[r]);
  }
  return w;
}

/// Appends the op's gradient by its rule, and checks which operands get one and of what type.
void apply_rule(const OpInfo& info, const OpCase& c, const Numbers& weights, Backward& backward) {
  graph::Builder builder(backward.graph);
  // A copy: the rule appends ops, which moves the graph's.
  const graph::Op op = backward.graph.op(c.op);
  const std::vector<ValueId> result_grads = add_weights(backward, builder, op, weights);
  std::vector<ValueId> operand_grads(op.operands.size(), graph::kNoValue);
  info.gradient(builder, op, result_grads, operand_grads);
  ASSERT_TRUE(builder.status().ok()) << builder.status().to_string();
  const Exceptions skip = exceptions_of(info.kind);
  for (size_t j = 0; j < operand_grads.size(); ++j) {
    const TensorType& type = builder.type(op.operands[j]);
    const bool expected = is_float(type.dtype) && !contains(skip.operands, j);
    ASSERT_EQ(expected, operand_grads[j] != graph::kNoValue) << "operand " << j;
    if (!expected) continue;
    ASSERT_EQ(builder.type(operand_grads[j]), type) << "operand " << j;
    builder.output(operand_grads[j], graph::Role::kActivation, numbered("d", j));
    backward.given.push_back(j);
  }
  ASSERT_FALSE(backward.given.empty());
}

void expect_gradients(const OpCase& c, const Numbers& weights, const Backward& backward) {
  const Result<Numbers> gradients = run_reference(backward.graph, backward.inputs);
  ASSERT_TRUE(gradients.ok()) << gradients.status().to_string();
  for (size_t i = 0; i < backward.given.size(); ++i)
    ASSERT_NO_FATAL_FAILURE(expect_slopes(c, weights, backward.given[i], (*gradients)[i]));
}

class GradientRule : public ::testing::TestWithParam<OpInfo> {};

TEST_P(GradientRule, MatchesCentralDifferences) {
  const OpInfo& info = GetParam();
  for (uint64_t seed = 0; seed < kCasesPerOp; ++seed) {
    const OpCase c = differentiable_case(info.kind, seed);
    ASSERT_TRUE(c.status.ok()) << c.status.to_string();
    SCOPED_TRACE("seed " + std::to_string(seed) + ", first operand " +
                 c.graph.type(c.graph.inputs()[0].value).to_string());
    const Numbers weights = draw_weights(c, exceptions_of(info.kind), seed);
    Backward backward = start_backward(c);
    ASSERT_NO_FATAL_FAILURE(apply_rule(info, c, weights, backward));
    ASSERT_NO_FATAL_FAILURE(expect_gradients(c, weights, backward));
  }
}

std::vector<OpInfo> differentiable_ops() {
  std::vector<OpInfo> ops;
  for (const OpInfo& info : graph::op_table()) {
    if (info.gradient != nullptr) ops.push_back(info);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(Ops, GradientRule, ::testing::ValuesIn(differentiable_ops()),
                         [](const auto& info) { return std::string(info.param.name); });

// Fused gradient ops are made by passes, so no rule names them; each is held against the slopes of
// the fused op whose gradient it is.
struct FusedGradient {
  OpKind forward;
  OpKind backward;
  /// Operands of `backward` in terms of operands (x), results (y) and result gradients (w).
  std::vector<ValueId> (*operands)(const std::vector<ValueId>& x, const std::vector<ValueId>& y,
                                   const std::vector<ValueId>& w);
  std::vector<size_t> weighted_results;
  /// Result of `backward` that is the gradient of operand j.
  std::vector<size_t> gradient_of;
};

class FusedGradientOp : public ::testing::TestWithParam<FusedGradient> {};

TEST_P(FusedGradientOp, MatchesCentralDifferences) {
  const FusedGradient& f = GetParam();
  for (uint64_t seed = 0; seed < kCasesPerOp; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const OpCase c = differentiable_case(f.forward, seed);
    ASSERT_TRUE(c.status.ok()) << c.status.to_string();
    Exceptions skip;
    for (size_t r = 0; r < c.graph.outputs().size(); ++r) {
      if (!contains(f.weighted_results, r)) skip.results.push_back(r);
    }
    const Numbers weights = draw_weights(c, skip, seed);
    Backward backward = start_backward(c);
    graph::Builder builder(backward.graph);
    const graph::Op op = backward.graph.op(c.op);
    const std::vector<ValueId> w = add_weights(backward, builder, op, weights);
    const bool same_attrs = f.forward == OpKind::kFlashAttention;
    const std::vector<ValueId> grads = builder.op(
        f.backward, f.operands(op.operands, op.results, w), same_attrs ? op.attrs : graph::Attrs{});
    ASSERT_TRUE(builder.status().ok()) << builder.status().to_string();
    for (size_t j = 0; j < f.gradient_of.size(); ++j) {
      builder.output(grads[f.gradient_of[j]], graph::Role::kActivation, numbered("d", j));
      backward.given.push_back(j);
    }
    ASSERT_NO_FATAL_FAILURE(expect_gradients(c, weights, backward));
  }
}

using Ids = std::vector<ValueId>;
INSTANTIATE_TEST_SUITE_P(
    Ops, FusedGradientOp,
    ::testing::Values(FusedGradient{OpKind::kFlashAttention,
                                    OpKind::kFlashAttentionGrad,
                                    [](const Ids& x, const Ids& y, const Ids& w) {
                                      return Ids{w[0], x[0], x[1], x[2], y[0], y[1]};
                                    },
                                    {0},
                                    {0, 1, 2}},
                      FusedGradient{OpKind::kSwiglu,
                                    OpKind::kSwigluGrad,
                                    [](const Ids& x, const Ids&, const Ids& w) {
                                      return Ids{x[0], x[1], w[0]};
                                    },
                                    {0},
                                    {0, 1}},
                      FusedGradient{OpKind::kAddRmsNorm,
                                    OpKind::kAddRmsNormGrad,
                                    [](const Ids& x, const Ids& y, const Ids& w) {
                                      return Ids{w[1], w[0], y[0], x[2], y[2]};
                                    },
                                    {0, 1},
                                    {0, 0, 1}}),
    [](const auto& info) { return std::string(graph::op_info(info.param.forward).name); });

// Ties, and places where a careless formula gives NaN; slopes do not exist or differ by side there.
std::vector<double> gradient_at(OpKind kind, std::vector<double> a, std::vector<double> b,
                                size_t operand, graph::Attrs attributes = {}) {
  graph::Graph g;
  graph::Builder builder(g);
  const TensorType type{DType::kF64, Shape{static_cast<int64_t>(a.size())}};
  Ids operands = {builder.input(type, graph::Role::kActivation, "a")};
  Numbers inputs = {a};
  if (!b.empty()) {
    operands.push_back(builder.input(type, graph::Role::kActivation, "b"));
    inputs.push_back(b);
  }
  const ValueId y = builder.op1(kind, operands, std::move(attributes));
  const ValueId w = builder.constant(1, builder.type(y));
  const graph::Op op = g.op(g.value(y).producer);
  Ids grads(operands.size(), graph::kNoValue);
  graph::op_info(kind).gradient(builder, op, Ids{w}, grads);
  builder.output(grads[operand], graph::Role::kActivation, "d");
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  const Result<Numbers> result = run_reference(g, inputs);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? (*result)[0] : std::vector<double>{};
}
using Row = std::vector<double>;

TEST(GradientEdges, MinimumAndMaximumGiveTiesToTheFirst) {
  for (const OpKind kind : {OpKind::kMinimum, OpKind::kMaximum}) {
    EXPECT_EQ(gradient_at(kind, {1, -2, 0}, {1, -2, 0}, 0), (Row{1, 1, 1}));
    EXPECT_EQ(gradient_at(kind, {1, -2, 0}, {1, -2, 0}, 1), (Row{0, 0, 0}));
  }
}

TEST(GradientEdges, ReduceMaxSharesTiesOut) {
  const Row g =
      gradient_at(OpKind::kReduceMax, {3, 1, 3}, {}, 0, attrs({{"axes", std::vector<int64_t>{0}}}));
  EXPECT_EQ(g, (Row{0.5, 0, 0.5}));
}

TEST(GradientEdges, PowIsFiniteAtZero) {
  EXPECT_EQ(gradient_at(OpKind::kPow, {0, 0, 0}, {1, 2, 3}, 0), (Row{1, 0, 0}));
  EXPECT_EQ(gradient_at(OpKind::kPow, {0, 0, 0}, {1, 2, 3}, 1), (Row{0, 0, 0}));
  EXPECT_EQ(gradient_at(OpKind::kPow, {0, 2}, {0, 0}, 0), (Row{0, 0}));
}

}  // namespace
}  // namespace sgactor::testing
