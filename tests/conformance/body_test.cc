// Bodies of several ops: views, values that are several outputs, inputs that are outputs, operands
// out of range.
#include "graph/ir/verify.h"
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"

namespace sgactor::testing {
namespace {

using graph::Graph;
using graph::OpKind;
using graph::Role;
using graph::ValueId;
using Row = std::vector<double>;

class Bodies : public BackendTest {
 protected:
  /// The outputs as numbers; views on their operand's bytes and elsewhere must agree.
  std::vector<Row> run(const Graph& graph, const std::vector<Row>& inputs) {
    EXPECT_TRUE(graph::verify(graph).ok()) << graph::verify(graph).to_string();
    const RunResult shared = run_on(backend(), graph, inputs, LayoutOptions{.views_share = true});
    const RunResult apart = run_on(backend(), graph, inputs, LayoutOptions{.views_share = false});
    EXPECT_TRUE(shared.status.ok()) << shared.status.to_string();
    EXPECT_TRUE(apart.status.ok()) << apart.status.to_string();
    EXPECT_EQ(shared.outputs, apart.outputs);
    std::vector<Row> numbers;
    for (size_t j = 0; j < shared.outputs.size(); ++j)
      numbers.push_back(from_native(graph.type(graph.outputs()[j].value), shared.outputs[j]));
    return numbers;
  }
  static ValueId input(graph::Builder& b, Shape shape, DType dtype = DType::kF32) {
    return b.input({dtype, std::move(shape)}, Role::kActivation,
                   numbered("x", b.graph().inputs().size()));
  }
  static void output(graph::Builder& b, ValueId v) {
    b.output(v, Role::kActivation, numbered("y", b.graph().outputs().size()));
  }
};

TEST_P(Bodies, AChainOfViewsIsItsFirstTensor) {
  Graph g;
  graph::Builder b(g);
  const ValueId x = input(b, {2, 3});
  const ValueId y = b.scale(x, 2);
  const ValueId v = b.reshape(b.reshape(y, {6}), {3, 2});
  output(b, b.add(v, v));
  const std::vector<Row> got = run(g, {{1, 2, 3, 4, 5, 6}});
  if (keeps_numbers(GetParam())) {
    EXPECT_EQ(got[0], (Row{4, 8, 12, 16, 20, 24}));
  }
}

TEST_P(Bodies, AViewMayBeAnOutputAndItsOperandToo) {
  Graph g;
  graph::Builder b(g);
  const ValueId x = input(b, {2, 2});
  const ValueId y = b.scale(x, 3);
  output(b, y);
  output(b, b.reshape(y, {4}));
  output(b, b.reshape(x, {4, 1}));
  RunResult got = run_on(backend(), g, {{1, 2, 3, 4}}, LayoutOptions{.views_share = false});
  ASSERT_TRUE(got.status.ok()) << got.status.to_string();
  EXPECT_EQ(got.outputs[0], got.outputs[1]);
  if (!keeps_numbers(GetParam())) return;
  EXPECT_EQ(from_native(g.type(y), got.outputs[1]), (Row{3, 6, 9, 12}));
  EXPECT_EQ(from_native(g.type(y), got.outputs[2]), (Row{1, 2, 3, 4}));
}

TEST_P(Bodies, AccumulatorsAreUpdatedInPlace) {
  Graph g;
  graph::Builder b(g);
  const ValueId acc = input(b, {3});
  const ValueId x = input(b, {3});
  const ValueId w = input(b, {3});
  output(b, b.accumulate(acc, b.mul(x, w)));
  const std::vector<Row> got = run(g, {{1, 2, 3}, {1, 1, 2}, {10, 20, 30}});
  if (keeps_numbers(GetParam())) {
    EXPECT_EQ(got[0], (Row{11, 22, 63}));
  }
}

TEST_P(Bodies, TheSameWorkHasTheSameBitsAndOtherWorkHasOthers) {
  const auto build = [](double factor, bool swap) {
    Graph g;
    graph::Builder b(g);
    const ValueId x = input(b, {4});
    const ValueId y = input(b, {4});
    output(b, swap ? b.sub(b.scale(y, factor), x) : b.sub(x, b.scale(y, factor)));
    return g;
  };
  const std::vector<Row> inputs = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const auto bits = [&](const Graph& g, const std::vector<Row>& in) {
    RunResult got = run_on(backend(), g, in);
    EXPECT_TRUE(got.status.ok()) << got.status.to_string();
    return got.outputs;
  };
  const auto first = bits(build(2, false), inputs);
  EXPECT_EQ(first, bits(build(2, false), inputs));
  EXPECT_NE(first, bits(build(3, false), inputs));
  EXPECT_NE(first, bits(build(2, true), inputs));
  EXPECT_NE(first, bits(build(2, false), {{1, 2, 3, 5}, {5, 6, 7, 8}}));
}

TEST_P(Bodies, IntegersMoveUnchanged) {
  Graph g;
  graph::Builder b(g);
  const ValueId ids = input(b, {2, 3}, DType::kI32);
  output(b, b.reshape(ids, {6}));
  const std::vector<Row> got = run(g, {{1, -2, 3, 2000000000, 5, 6}});
  if (keeps_numbers(GetParam())) {
    EXPECT_EQ(got[0], (Row{1, -2, 3, 2000000000, 5, 6}));
  }
}

struct BadValue {
  OpKind kind;
  double id;
};
/// The op with one id or target that its table does not have.
RunResult run_with_id(kernels::Backend& backend, OpKind kind, double id) {
  Graph g;
  graph::Builder b(g);
  const ValueId table = b.input({DType::kF32, Shape{3, 4}}, Role::kActivation, "table");
  const ValueId ids = b.input({DType::kI32, Shape{3}}, Role::kActivation, "ids");
  const ValueId lse = b.input({DType::kF32, Shape{3}}, Role::kActivation, "lse");
  const ValueId dloss = b.input({DType::kF32, Shape{}}, Role::kActivation, "dloss");
  std::vector<ValueId> results;
  switch (kind) {
    case OpKind::kGather:
    case OpKind::kCrossEntropy:
      results = b.op(kind, {table, ids});
      break;
    case OpKind::kScatterAdd:
      results = b.op(kind, {ids, table}, attrs({{"rows", int64_t{4}}}));
      break;
    default:
      results = b.op(kind, {table, ids, lse, dloss});
      break;
  }
  for (size_t i = 0; i < results.size(); ++i)
    b.output(results[i], Role::kActivation, numbered("y", i));
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  return run_on(backend, g, {Row(12, 0.5), {0, id, 1}, {1, 1, 1}, {1}});
}

/// A hash is never out of range.
class NumberBodies : public Bodies {};

TEST_P(NumberBodies, IdsOutsideTheirTableAreErrorsThatNameThem) {
  const std::vector<BadValue> bad = {
      {OpKind::kGather, 3},         {OpKind::kGather, -5},          {OpKind::kGather, 2000000000},
      {OpKind::kScatterAdd, 4},     {OpKind::kScatterAdd, -5},      {OpKind::kCrossEntropy, 4},
      {OpKind::kCrossEntropy, 777}, {OpKind::kCrossEntropyGrad, 4},
  };
  for (const BadValue& value : bad) {
    const Status status = run_with_id(backend(), value.kind, value.id).status;
    SCOPED_TRACE(std::string(graph::op_info(value.kind).name));
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find(std::to_string(static_cast<int64_t>(value.id))),
              std::string::npos)
        << status.message();
  }
  for (const BadValue& value :
       {BadValue{OpKind::kGather, 2}, BadValue{OpKind::kScatterAdd, 3},
        BadValue{OpKind::kCrossEntropy, 3}, BadValue{OpKind::kCrossEntropy, -100},
        BadValue{OpKind::kCrossEntropyGrad, -1}}) {
    const Status status = run_with_id(backend(), value.kind, value.id).status;
    EXPECT_TRUE(status.ok()) << graph::op_info(value.kind).name << ": " << status.to_string();
  }
}

SGA_INSTANTIATE_FOR(Bodies, present_backends());
SGA_INSTANTIATE_FOR(NumberBodies, number_backends());

}  // namespace
}  // namespace sgactor::testing
