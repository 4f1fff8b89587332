// Gradient rules by form: each gives every float operand a gradient of the operand's type, in a
// graph that verifies. Their numbers are checked against finite differences by the conformance
// suite.
#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/ir/verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace sgactor::graph {
namespace {

class GradientRulesTest : public testing::Test {
 protected:
  ValueId value(Shape shape, DType dtype = DType::kF32) {
    return b_.input({dtype, std::move(shape)}, Role::kActivation,
                    fmt::format("x{}", graph_.inputs().size()));
  }

  /// Applies the rule of the op that made `y`, with gradients for the results in `with`.
  std::vector<ValueId> gradients(ValueId y, const std::vector<int>& with = {0}) {
    EXPECT_TRUE(b_.status().ok()) << b_.status().to_string();
    const Op op = graph_.op(graph_.value(y).producer);
    std::vector<ValueId> result_grads(op.results.size(), kNoValue);
    for (int i : with) {
      const ValueId result = op.results[static_cast<size_t>(i)];
      result_grads[static_cast<size_t>(i)] =
          value(graph_.type(result).shape, graph_.type(result).dtype);
    }
    std::vector<ValueId> grads(op.operands.size(), kNoValue);
    op_info(op.kind).gradient(b_, op, result_grads, grads);
    return grads;
  }

  /// Same, and checks the types: a gradient for each operand but those in `without`.
  void check(ValueId y, const std::vector<int>& with = {0}, const std::vector<int>& without = {}) {
    const Op op = graph_.op(graph_.value(y).producer);
    SCOPED_TRACE(op_info(op.kind).name);
    const std::vector<ValueId> grads = gradients(y, with);
    ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();
    for (size_t i = 0; i < grads.size(); ++i) {
      if (std::find(without.begin(), without.end(), static_cast<int>(i)) != without.end()) {
        EXPECT_EQ(grads[i], kNoValue) << i;
      } else {
        ASSERT_NE(grads[i], kNoValue) << i;
        EXPECT_EQ(graph_.type(grads[i]), graph_.type(op.operands[i])) << i;
      }
    }
    EXPECT_TRUE(verify(graph_).ok()) << verify(graph_).to_string();
    tested_.insert(op.kind);
  }

  Graph graph_;
  Builder b_{graph_};
  std::set<OpKind> tested_;
};

TEST_F(GradientRulesTest, EveryRuleGivesTypesOfItsOperands) {
  const ValueId x = value({2, 3, 4});
  for (int kind = 0; kind <= static_cast<int>(OpKind::kPow); ++kind) {
    for (const Shape& shape : {Shape{2, 3, 4}, Shape{3, 4}, Shape{4}, Shape{}}) {
      check(b_.op1(static_cast<OpKind>(kind), {x, value(shape)}));
    }
  }
  for (int kind = static_cast<int>(OpKind::kNeg); kind <= static_cast<int>(OpKind::kSilu); ++kind) {
    check(b_.unary(static_cast<OpKind>(kind), x));
  }
  check(b_.scale(x, 0.5));
  check(b_.add_scalar(x, 2));
  check(b_.cast(x, DType::kBF16));
  check(b_.cast(x, DType::kI32), {0}, {0});
  check(b_.cast(value({2}, DType::kI32), DType::kF32), {0}, {0});
  check(b_.reshape(x, {6, 4}));
  check(b_.transpose(x, {2, 0, 1}));
  check(b_.slice(x, 1, 1, 2));
  check(b_.pad(x, 2, 1, 2));
  check(b_.concat({x, value({2, 1, 4}), x}, 1));
  check(b_.broadcast(x, {5, 2, 3, 4, 6}, {0, 4}));
  check(b_.broadcast(x, {2, 3, 4}, {}));
  check(b_.reduce_sum(x, {0, 2}));
  Attrs axes;
  axes.set("axes", std::vector<int64_t>{1});
  check(b_.op1(OpKind::kReduceMax, {x}, axes));
  for (int64_t chunk : {int64_t{1}, int64_t{5}, int64_t{24}, INT64_MAX}) {
    for (ValueId operand : {x, value({7, 3}, DType::kBF16), value({0, 3})}) {
      Attrs attrs;
      attrs.set("chunk", chunk);
      check(b_.op1(OpKind::kSumSquares, {operand}, attrs));
    }
  }
  check(b_.op1(OpKind::kTreeSum, {value({5})}));
  for (bool trans_a : {false, true}) {
    for (bool trans_b : {false, true}) {
      check(b_.matmul(value(trans_a ? Shape{7, 3, 2} : Shape{7, 2, 3}),
                      value(trans_b ? Shape{7, 5, 3} : Shape{7, 3, 5}), trans_a, trans_b));
    }
  }
  check(b_.softmax(x));
  check(b_.causal_mask(x, -1));
  check(b_.rms_norm(x, value({4}), 1e-5).first);
  check(b_.rotate(value({2, 5, 3, 8}), value({5, 4}), value({5, 4}), false), {0}, {1, 2});
  check(b_.gather(value({9, 4}), value({2, 3}, DType::kI32)), {0}, {1});
  Attrs rows;
  rows.set("rows", int64_t{9});
  check(b_.op1(OpKind::kScatterAdd, {value({2, 3}, DType::kI32), x}, rows), {0}, {0});
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const std::vector<int>& with : {std::vector{0}, std::vector{1}, std::vector{0, 1}}) {
      check(b_.cross_entropy(value({6, 9}, dtype), value({6}, DType::kI32)).first, with, {1});
    }
  }
  for (const OpInfo& info : op_table()) {
    EXPECT_EQ(tested_.contains(info.kind), info.gradient != nullptr) << info.name;
  }
}

TEST_F(GradientRulesTest, RmsNormHasNoneThroughRstd) {
  gradients(b_.rms_norm(value({2, 4}), value({4}), 1e-5).first, {0, 1});
  EXPECT_NE(b_.status().message().find("rstd"), std::string::npos);
}

TEST_F(GradientRulesTest, PowSkipsAConstantExponent) {
  const ValueId x = value({3});
  check(b_.pow(x, b_.constant(2, {DType::kF32, {}})), {0}, {1});
}

TEST_F(GradientRulesTest, RotateTurnsBack) {
  const ValueId dx =
      gradients(b_.rotate(value({1, 2, 1, 4}), value({2, 2}), value({2, 2}), true))[0];
  const Op& back = graph_.op(graph_.value(dx).producer);
  EXPECT_EQ(back.kind, OpKind::kRotate);
  EXPECT_FALSE(back.attrs.flag("inverse"));
}

TEST_F(GradientRulesTest, CausalMaskPassesNothingThroughTheMask) {
  const ValueId dx = gradients(b_.causal_mask(value({3, 3}), -1e30))[0];
  EXPECT_EQ(graph_.op(graph_.value(dx).producer).attrs.f64("fill"), 0.0);
}

}  // namespace
}  // namespace sgactor::graph
