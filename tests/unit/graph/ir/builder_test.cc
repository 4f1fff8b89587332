#include "graph/ir/builder.h"

#include "graph/ir/verify.h"

#include <gtest/gtest.h>

namespace sgactor::graph {
namespace {

TEST(AttrsTest, SortedByNameAndReplaced) {
  Attrs attrs;
  attrs.set("start", int64_t{1});
  attrs.set("axis", int64_t{2});
  attrs.set("start", 0.5);
  ASSERT_EQ(attrs.entries().size(), 2U);
  EXPECT_EQ(attrs.entries()[0].first, "axis");
  EXPECT_EQ(attrs.i64("axis"), 2);
  EXPECT_EQ(attrs.f64("start"), 0.5);
  EXPECT_EQ(attrs.find("size"), nullptr);
}

TEST(GraphTest, NamesOfPhasesAndRolesRoundTrip) {
  for (int i = 0; i < kNumPhases; ++i) {
    EXPECT_EQ(parse_phase(to_string(static_cast<Phase>(i))), static_cast<Phase>(i));
  }
  for (int i = 0; i < kNumRoles; ++i) {
    EXPECT_EQ(parse_role(to_string(static_cast<Role>(i))), static_cast<Role>(i));
  }
  EXPECT_EQ(parse_phase("sideways"), std::nullopt);
  EXPECT_EQ(parse_role(""), std::nullopt);
}

TEST(GraphTest, FindsByRoleAndName) {
  Graph graph;
  Builder b(graph);
  const ValueId w = b.input({DType::kF32, {2}}, Role::kParameter, "w");
  const ValueId m = b.input({DType::kF32, {2}}, Role::kMoment, "w");
  b.output(m, Role::kMoment, "w");
  EXPECT_EQ(graph.find_input(Role::kParameter, "w"), w);
  EXPECT_EQ(graph.find_input(Role::kMoment, "w"), m);
  EXPECT_EQ(graph.find_input(Role::kMoment, "v"), kNoValue);
  EXPECT_EQ(graph.find_output(Role::kMoment, "w"), m);
  EXPECT_EQ(graph.find_output(Role::kParameter, "w"), kNoValue);
}

TEST(GraphTest, UseCountsCountOperandPositions) {
  Graph graph;
  Builder b(graph);
  const ValueId x = b.input({DType::kF32, {2}}, Role::kActivation, "x");
  const ValueId y = b.mul(x, x);
  b.output(b.neg(y), Role::kActivation, "out");
  EXPECT_EQ(graph.use_counts(), (std::vector<int32_t>{2, 1, 0}));
}

TEST(BuilderTest, TagsOpsWithPhaseAndSegment) {
  Graph graph;
  Builder b(graph);
  b.set_segment("embed");
  b.set_segment("layer.0");
  b.set_phase(Phase::kBackward);
  const ValueId c = b.constant(1, {DType::kF32, {}});
  EXPECT_EQ(graph.op(graph.value(c).producer).segment, 1);
  EXPECT_EQ(graph.op(graph.value(c).producer).phase, Phase::kBackward);
  b.set_segment("embed");
  EXPECT_EQ(b.segment(), 0);
}

TEST(BuilderTest, FirstErrorSticksAndStopsBuilding) {
  Graph graph;
  Builder b(graph);
  const ValueId x = b.input({DType::kF32, {2, 3}}, Role::kActivation, "x");
  const ValueId y = b.matmul(x, x);
  EXPECT_EQ(y, kNoValue);
  const std::string message = b.status().message();
  EXPECT_NE(message.find("op 0 matmul"), std::string::npos) << message;
  EXPECT_EQ(b.add(y, x), kNoValue);
  EXPECT_EQ(b.input({DType::kF32, {}}, Role::kScalar, "s"), kNoValue);
  b.output(x, Role::kActivation, "out");
  b.fail(internal_error("later"));
  EXPECT_EQ(b.status().message(), message);
  EXPECT_EQ(b.rms_norm(x, x, 1e-5), std::make_pair(kNoValue, kNoValue));
  EXPECT_TRUE(graph.ops().empty());
  EXPECT_TRUE(graph.outputs().empty());
  EXPECT_EQ(b.type(kNoValue), TensorType{});
}

TEST(BuilderTest, RefusesValuesThatAreNone) {
  Graph graph;
  Builder b(graph);
  b.neg(7);
  EXPECT_FALSE(b.status().ok());
  Builder c(graph);
  c.output(kNoValue, Role::kLoss, "loss");
  EXPECT_NE(c.status().message().find("output \"loss\" has no value"), std::string::npos);
  Builder d(graph);
  d.input({DType::kF32, {-1}}, Role::kLoss, "x");
  EXPECT_FALSE(d.status().ok());
}

TEST(BuilderTest, EveryShorthandMakesItsOp) {
  Graph graph;
  Builder b(graph);
  const ValueId x = b.input({DType::kF32, {2, 4, 2, 6}}, Role::kActivation, "x");
  const ValueId ids = b.input({DType::kI32, {3}}, Role::kTokens, "ids");
  const ValueId flat = b.reshape(x, {16, 6});
  const std::vector<std::pair<ValueId, OpKind>> made = {
      {b.add(x, x), OpKind::kAdd},
      {b.sub(x, x), OpKind::kSub},
      {b.mul(x, x), OpKind::kMul},
      {b.div(x, x), OpKind::kDiv},
      {b.minimum(x, x), OpKind::kMinimum},
      {b.maximum(x, x), OpKind::kMaximum},
      {b.pow(x, x), OpKind::kPow},
      {b.sqrt(x), OpKind::kSqrt},
      {b.silu(x), OpKind::kSilu},
      {b.add_scalar(x, 1), OpKind::kAddScalar},
      {b.cast(x, DType::kBF16), OpKind::kCast},
      {b.transpose(flat, {1, 0}), OpKind::kTranspose},
      {b.slice(flat, 0, 2, 3), OpKind::kSlice},
      {b.pad(flat, 1, 2, 3), OpKind::kPad},
      {b.concat({flat, flat}, 0), OpKind::kConcat},
      {b.broadcast(flat, {16, 2, 6}, {1}), OpKind::kBroadcast},
      {b.reduce_sum(x, {1}), OpKind::kReduceSum},
      {b.softmax(x), OpKind::kSoftmax},
      {b.causal_mask(x, 0), OpKind::kCausalMask},
      {b.gather(flat, ids), OpKind::kGather},
      {b.accumulate(b.constant(0, {DType::kF32, {16, 6}}), flat), OpKind::kAccumulate},
      {b.rotate(x, b.constant(1, {DType::kF32, {4, 3}}), b.constant(0, {DType::kF32, {4, 3}}),
                true),
       OpKind::kRotate},
      {b.cross_entropy(b.slice(flat, 0, 0, 3), ids).second, OpKind::kCrossEntropy},
  };
  ASSERT_TRUE(b.status().ok()) << b.status().to_string();
  for (const auto& [value, kind] : made) {
    EXPECT_EQ(graph.op(graph.value(value).producer).kind, kind);
  }
  EXPECT_TRUE(verify(graph).ok()) << verify(graph).to_string();
}

}  // namespace
}  // namespace sgactor::graph
