// Each rule of the verifier with a graph that breaks it.
#include "graph/ir/verify.h"

#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "tests/unit/graph/ir/random_graph.h"

#include <gtest/gtest.h>

#include <functional>

namespace sgactor::graph {
namespace {

/// x -> y = neg(x), z = square(y), (n, rstd) = rms_norm(x, w) -> outputs z and n.
Graph small() {
  Graph graph;
  Builder b(graph);
  b.set_segment("layer.0");
  const ValueId x = b.input({DType::kF32, {2, 3}}, Role::kActivation, "x");
  const ValueId w = b.input({DType::kF32, {3}}, Role::kParameter, "w");
  const ValueId z = b.square(b.neg(x));
  b.output(z, Role::kActivation, "z");
  b.output(b.rms_norm(x, w, 1e-5).first, Role::kActivation, "n");
  SGA_CHECK(b.status().ok(), b.status().to_string());
  return graph;
}

std::string error_of(const Graph& graph) {
  const Status s = verify(graph);
  EXPECT_EQ(s.code(), Code::kInvalidPlan);
  return s.message();
}

/// The error after op 0 or another of small() was changed.
std::string error_after(const std::function<void(Graph&)>& change) {
  Graph graph = small();
  EXPECT_TRUE(verify(graph).ok());
  change(graph);
  return error_of(graph);
}

#define EXPECT_CONTAINS(text, part)                                       \
  do {                                                                    \
    const std::string found = (text);                                     \
    EXPECT_NE(found.find(part), std::string::npos) << "found: " << found; \
  } while (false)

TEST(VerifyTest, ValidGraphsPass) {
  EXPECT_TRUE(verify(Graph()).ok());
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Status s = verify(random_graph(seed, 40));
    EXPECT_TRUE(s.ok()) << seed << ": " << s.to_string();
  }
}

TEST(VerifyTest, OperandsAreDefinedBefore) {
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).operands[0] = 3; }),
                  "op 0 neg %2: operand %3 is not defined before it");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).operands[0] = 2; }),
                  "not defined before it");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(1).operands[0] = 99; }),
                  "op 1 square %3: operand %99 is no value");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(1).operands[0] = kNoValue; }),
                  "is no value");
}

TEST(VerifyTest, ValuesAreDefinedOnce) {
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(1).results[0] = 2; }),
                  "result %2 is defined elsewhere");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).results[0] = 0; }),
                  "result %0 is defined elsewhere");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).results[0] = 99; }),
                  "result %99 is no value");
  EXPECT_CONTAINS(error_after([](Graph& g) {
                    std::swap(g.mutable_op(2).results[0], g.mutable_op(2).results[1]);
                  }),
                  "is defined elsewhere");
}

TEST(VerifyTest, ArityAndResults) {
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).operands.push_back(0); }),
                  "has 2 operands, expected 1");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).operands.clear(); }),
                  "has 0 operands, expected 1");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(2).results.pop_back(); }),
                  "has 1 results, expected 2");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).results.clear(); }),
                  "op 0 neg: has 0 results");
}

TEST(VerifyTest, KindPhaseAndSegment) {
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).kind = OpKind::kCount; }),
                  "its kind is unknown");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).phase = static_cast<Phase>(9); }),
                  "its phase is unknown");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).segment = 1; }),
                  "segment 1 is not in [0, 1)");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).segment = -1; }), "segment -1");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(0).phase = Phase::kUpdate; }),
                  "op 1 square %3: runs in phase forward, before its operand %2 (phase update)");
}

TEST(VerifyTest, Attributes) {
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(2).attrs = {}; }),
                  "op 2 rms_norm %4: attribute eps is missing");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(2).attrs.set("eps", int64_t{1}); }),
                  "attribute eps has another type");
  EXPECT_CONTAINS(error_after([](Graph& g) { g.mutable_op(2).attrs.set("axis", int64_t{1}); }),
                  "attribute axis is unknown");
}

TEST(VerifyTest, UnknownDTypeInAttribute) {
  Graph graph;
  Builder b(graph);
  const ValueId x = b.input({DType::kF32, {}}, Role::kScalar, "x");
  b.cast(x, DType::kF64);
  graph.mutable_op(0).attrs.set("dtype", static_cast<DType>(42));
  EXPECT_CONTAINS(error_of(graph), "attribute dtype has another type");
}

TEST(VerifyTest, ResultTypesFollowTheTable) {
  Graph graph;
  const ValueId x = graph.add_input({DType::kF32, {2}}, Role::kScalar, "x");
  graph.add_op(OpKind::kNeg, {x}, {}, {{DType::kF32, {3}}}, Phase::kForward, 0);
  EXPECT_CONTAINS(error_of(graph), "op 0 neg %1: result %1 is f32[3], expected f32[2]");
}

TEST(VerifyTest, InputTypesAreSane) {
  for (const TensorType& type :
       {TensorType{DType::kF32, {-1}}, TensorType{static_cast<DType>(50), {1}},
        TensorType{DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}},
        TensorType{DType::kF32, Shape(std::vector<int64_t>(100, 1))}}) {
    Graph graph;
    const ValueId x = graph.add_input(type, Role::kScalar, "x");
    graph.add_op(OpKind::kNeg, {x}, {}, {type}, Phase::kForward, 0);
    EXPECT_CONTAINS(error_of(graph), "input 0 scalar \"x\"");
  }
}

TEST(VerifyTest, NamesAreUniqueInARole) {
  Graph graph;
  const ValueId x = graph.add_input({DType::kF32, {}}, Role::kScalar, "x");
  graph.add_input({DType::kF32, {}}, Role::kMetric, "x");
  EXPECT_TRUE(verify(graph).ok());
  graph.add_input({DType::kF32, {}}, Role::kScalar, "x");
  EXPECT_CONTAINS(error_of(graph), "another input of this name");

  Graph outputs;
  outputs.add_input({DType::kF32, {}}, Role::kScalar, "x");
  outputs.add_output(x, Role::kMetric, "lr");
  outputs.add_output(x, Role::kLoss, "lr");
  EXPECT_TRUE(verify(outputs).ok());
  outputs.add_output(x, Role::kMetric, "lr");
  EXPECT_CONTAINS(error_of(outputs), "another output of this name");
}

TEST(VerifyTest, OutputsAndRolesExist) {
  Graph graph = small();
  graph.add_output(77, Role::kMetric, "lr");
  EXPECT_CONTAINS(error_of(graph), "output 2 metric \"lr\" is no value");
  Graph roles = small();
  roles.add_output(0, static_cast<Role>(99), "lr");
  EXPECT_CONTAINS(error_of(roles), "unknown role");
  Graph inputs;
  inputs.add_input({DType::kF32, {}}, static_cast<Role>(99), "x");
  EXPECT_CONTAINS(error_of(inputs), "unknown role");
}

TEST(VerifyTest, StateKeepsItsType) {
  Graph graph;
  Builder b(graph);
  const ValueId w = b.input({DType::kF32, {2}}, Role::kParameter, "w");
  b.output(b.cast(w, DType::kBF16), Role::kParameter, "w");
  EXPECT_CONTAINS(error_of(graph), "is bf16[2], but the input of this name is f32[2]");
}

class InPlaceTest : public testing::Test {
 protected:
  InPlaceTest() {
    acc_ = b_.input({DType::kF32, {2, 3}}, Role::kAccumulator, "grad/w");
    x_ = b_.input({DType::kF32, {2, 3}}, Role::kActivation, "x");
  }
  Graph graph_;
  Builder b_{graph_};
  ValueId acc_;
  ValueId x_;
};

TEST_F(InPlaceTest, UseBeforeTheUpdateIsFine) {
  b_.output(b_.neg(acc_), Role::kMetric, "before");
  b_.output(b_.accumulate(b_.accumulate(acc_, x_), x_), Role::kAccumulator, "grad/w");
  EXPECT_TRUE(verify(graph_).ok()) << verify(graph_).to_string();
}

TEST_F(InPlaceTest, UseAfterTheUpdateIsNot) {
  b_.accumulate(acc_, x_);
  b_.neg(acc_);
  EXPECT_CONTAINS(error_of(graph_),
                  "op 1 neg %3: operand %0 was updated in place by op 0 accumulate %2");
}

TEST_F(InPlaceTest, SecondUpdateOfOneValueIsNot) {
  b_.accumulate(acc_, x_);
  b_.accumulate(acc_, x_);
  EXPECT_CONTAINS(error_of(graph_), "was updated in place");
}

TEST_F(InPlaceTest, OutputOfAnOverwrittenValueIsNot) {
  b_.accumulate(acc_, x_);
  b_.output(acc_, Role::kAccumulator, "grad/w");
  EXPECT_CONTAINS(error_of(graph_), "output 0 accumulator \"grad/w\": %0 was updated in place");
}

TEST_F(InPlaceTest, ViewsShareTheFate) {
  const ValueId flat = b_.reshape(acc_, {6});
  const ValueId again = b_.reshape(flat, {3, 2});
  b_.accumulate(flat, b_.reshape(x_, {6}));
  EXPECT_TRUE(verify(graph_).ok());
  Graph of_root = graph_;
  Builder(of_root).neg(acc_);
  EXPECT_CONTAINS(error_of(of_root), "was updated in place");
  Builder(graph_).neg(again);
  EXPECT_CONTAINS(error_of(graph_), "was updated in place");
}

TEST_F(InPlaceTest, ReadingWhatIsUpdatedIsNot) {
  b_.accumulate(acc_, acc_);
  EXPECT_CONTAINS(error_of(graph_), "is updated in place and also read as operand 1");
}

TEST_F(InPlaceTest, AdamwUpdatesThree) {
  auto state = [&](Role role, const char* name) {
    return b_.input({DType::kF32, {4}}, role, name);
  };
  const ValueId p = state(Role::kParameter, "w");
  const ValueId m = state(Role::kMoment, "m/w");
  const ValueId v = state(Role::kMoment, "v/w");
  const ValueId g = state(Role::kAccumulator, "g");
  const ValueId one = b_.constant(1, {DType::kF32, {}});
  Attrs attrs;
  for (const char* name : {"beta1", "beta2", "eps", "weight_decay"}) attrs.set(name, 0.5);
  b_.op(OpKind::kAdamw, {p, m, v, g, one, one, one, one}, attrs);
  EXPECT_TRUE(verify(graph_).ok()) << verify(graph_).to_string();
  for (ValueId overwritten : {p, m, v}) {
    Graph graph = graph_;
    Builder(graph).neg(overwritten);
    EXPECT_CONTAINS(error_of(graph), "was updated in place");
  }
  Builder(graph_).neg(g);
  EXPECT_TRUE(verify(graph_).ok());
}

}  // namespace
}  // namespace sgactor::graph
