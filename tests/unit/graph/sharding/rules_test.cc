// Every strategy of every op's sharding rule: operands cut as it says, the op run on each rank, and
// the results put together again are those of the whole op.
#include "graph/ir/op_table.h"
#include "graph/passes/rewrite.h"
#include "kernels/reference/reference_backend.h"
#include "tests/conformance/op_cases.h"
#include "tests/unit/graph/sharding/sharded_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace sgactor::testing {
namespace {

using graph::Graph;
using graph::Op;
using graph::OpKind;
using graph::Placement;
using graph::ShardingDecisions;
using graph::ShardingStrategy;
using graph::ValueId;

constexpr int kCasesPerOp = 40;

/// The op alone, with its operands as inputs.
struct Alone {
  Graph graph;
  RankNumbers inputs;
};

Alone draw_alone(OpKind kind, uint64_t seed) {
  PhiloxDraw draw(seed + (1000 * static_cast<uint64_t>(kind)));
  OpCase c = make_case(kind, {.dtype = DType::kF64, .max_dim = 6, .max_elements = 200}, draw);
  EXPECT_TRUE(c.status.ok()) << c.status.to_string();
  Op op = c.graph.op(c.op);
  // The mask of a gradient, which is linear.
  if (kind == OpKind::kCausalMask && seed % 2 == 0) op.attrs.set("fill", 0.0);
  Alone alone;
  graph::Builder builder(alone.graph);
  std::vector<ValueId> operands;
  c.graph.clear_outputs();
  for (size_t i = 0; i < op.operands.size(); ++i) {
    operands.push_back(
        builder.input(c.graph.type(op.operands[i]), graph::Role::kActivation, numbered("x", i)));
    c.graph.add_output(op.operands[i], graph::Role::kActivation, numbered("x", i));
  }
  // Without the op itself, which may update its operand in place.
  Result<RankNumbers> numbers = kernels::run_reference(graph::clean_graph(c.graph), c.inputs);
  EXPECT_TRUE(numbers.ok()) << numbers.status().to_string();
  alone.inputs = *numbers;
  const std::vector<ValueId> results = builder.op(kind, operands, op.attrs);
  for (size_t i = 0; i < results.size(); ++i) {
    builder.output(results[i], graph::Role::kActivation, numbered("y", i));
  }
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return alone;
}

std::string text_of(const ShardingStrategy& s) {
  std::string text;
  for (const Placement p : s.operands) text += p.to_string() + " ";
  text += "->";
  for (const Placement p : s.results) text += " " + p.to_string();
  return text;
}

void check_strategy(const Alone& alone, const ShardingStrategy& s, int32_t members) {
  const RankNumbers expected = *kernels::run_reference(alone.graph, alone.inputs);
  const ShardingDecisions decisions{s.operands, {{s, 0}}, s.results, {}};
  const Result<graph::ShardedTraining> sharded =
      graph::insert_collectives(alone.graph, decisions, {.members = members, .rules = {}});
  ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
  const Result<std::vector<RankNumbers>> ranks =
      run_mesh(sharded->graph, {{"tp", members}},
               split_inputs(alone.graph, sharded->graph, s.operands, alone.inputs, members));
  ASSERT_TRUE(ranks.ok()) << ranks.status().to_string();
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorType& type = alone.graph.type(alone.graph.outputs()[i].value);
    expect_near(join(output_of(*ranks, i), type, s.results[i]), expected[i], 1e-11);
  }
}

class ShardingRuleTest : public ::testing::TestWithParam<graph::OpInfo> {};

TEST_P(ShardingRuleTest, EveryStrategyGivesTheWholeResult) {
  const OpKind kind = GetParam().kind;
  std::set<std::string> checked;
  for (uint64_t seed = 0; seed < kCasesPerOp; ++seed) {
    const Alone alone = draw_alone(kind, seed);
    const auto members = static_cast<int32_t>(2 + (seed % 3));
    for (const ShardingStrategy& s :
         graph::sharding_strategies(alone.graph, alone.graph.op(0), members)) {
      SCOPED_TRACE(text_of(s) + " over " + std::to_string(members) + ", seed " +
                   std::to_string(seed));
      ASSERT_NO_FATAL_FAILURE(check_strategy(alone, s, members));
      checked.insert(text_of(s));
    }
  }
  const bool whole = GetParam().sharding == &graph::rules::kWholeSharding;
  EXPECT_GE(checked.size(), whole ? 1U : 2U);
}

std::vector<graph::OpInfo> ops_with_rules() {
  std::vector<graph::OpInfo> ops;
  for (const graph::OpInfo& info : graph::op_table()) {
    if (info.sharding != nullptr) ops.push_back(info);
  }
  return ops;
}
INSTANTIATE_TEST_SUITE_P(Ops, ShardingRuleTest, ::testing::ValuesIn(ops_with_rules()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ShardingRules, EveryPrimitiveOpHasOne) {
  for (const graph::OpInfo& info : graph::op_table()) {
    const bool made_by_passes =
        info.fused || info.communicates || info.kind >= OpKind::kGatherShard;
    EXPECT_EQ(info.sharding != nullptr, !made_by_passes) << info.name;
  }
}

/// A value placed one way and wanted another, whatever its extents.
TEST(InsertCollectives, EveryConversionKeepsTheValue) {
  const std::vector<Placement> all = {Placement::replicate(), Placement::shard(0),
                                      Placement::shard(1), Placement::shard(2),
                                      Placement::partial()};
  Graph g;
  graph::Builder b(g);
  const TensorType type{DType::kF64, Shape{5, 4, 3}};
  b.output(b.input(type, graph::Role::kActivation, "x"), graph::Role::kActivation, "y");
  std::vector<double> numbers;
  for (int i = 0; i < type.num_elements(); ++i) numbers.push_back(i + 1);
  for (const int32_t members : {2, 3, 4, 7}) {
    for (const Placement from : all) {
      for (const Placement to : all) {
        if (to.is_partial() && !from.is_partial()) continue;
        SCOPED_TRACE(from.to_string() + " to " + to.to_string() + " over " +
                     std::to_string(members));
        const Result<graph::ShardedTraining> sharded =
            graph::insert_collectives(g, {{from}, {}, {to}, {}}, {.members = members, .rules = {}});
        ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
        const Result<std::vector<RankNumbers>> ranks =
            run_mesh(sharded->graph, {{"tp", members}},
                     split_inputs(g, sharded->graph, {from}, {numbers}, members));
        ASSERT_TRUE(ranks.ok()) << ranks.status().to_string();
        expect_near(join(output_of(*ranks, 0), type, to), numbers, 1e-12);
      }
    }
  }
}

TEST(InsertCollectives, RefusesDecisionsOfAnotherGraph) {
  Graph g;
  graph::Builder b(g);
  b.output(b.neg(b.input({DType::kF32, Shape{2}}, graph::Role::kActivation, "x")),
           graph::Role::kActivation, "y");
  const Result<graph::ShardedTraining> sharded =
      graph::insert_collectives(g, {}, {.members = 2, .rules = {}});
  EXPECT_EQ(sharded.status().code(), Code::kInvalidPlan);
}

}  // namespace
}  // namespace sgactor::testing
