#include "graph/ir/pointwise_program.h"

#include "graph/ir/op_table.h"

#include <gtest/gtest.h>

namespace sgactor::graph {
namespace {

TEST(PointwiseProgramTest, PrintsAndReadsBack) {
  const PointwiseProgram program = {{OpKind::kMul, 0, 1, 0},
                                    {OpKind::kScale, 2, 0, 0.1},
                                    {OpKind::kAddScalar, 3, 0, -1e-300},
                                    {OpKind::kSilu, 4, 0, 0}};
  const std::string text = print_pointwise_program(program);
  EXPECT_EQ(text, "mul 0 1; scale 2 0.1; add_scalar 3 -1e-300; silu 4");
  const Result<PointwiseProgram> read = parse_pointwise_program(text, 2);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(*read, program);
}

TEST(PointwiseProgramTest, RefusesOtherText) {
  for (const char* text : {"", ";", "add 0", "add 0 2", "add 0 -1", "add 0 1 0", "scale 0",
                           "scale 0 x", "neg 0 1", "matmul 0 1", "cast 0", "no_such 0", "add 0 1;",
                           "add 0 1; neg 3", "add 0x 1", "add 0 1e"}) {
    const Result<PointwiseProgram> read = parse_pointwise_program(text, 2);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), Code::kInvalidPlan);
  }
  std::string text = "neg 0";
  for (int32_t i = 1; i < kMaxPointwiseInstructions; ++i) text += "; neg 0";
  EXPECT_TRUE(parse_pointwise_program(text, 2).ok());
  EXPECT_FALSE(parse_pointwise_program(text + "; neg 0", 2).ok());
}

TEST(PointwiseProgramTest, ShapesAreThoseOfTheFirstOperandOrSuffixes) {
  Attrs attrs;
  attrs.set("program", std::string("add 0 1"));
  const TensorType x{DType::kF32, {2, 3}};
  const auto infer = [&](const TensorType& first, const TensorType& second) {
    return infer_types(OpKind::kFusedPointwise, std::vector<TensorType>{first, second}, attrs);
  };
  const auto same = infer(x, {DType::kF32, {3}});
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  EXPECT_EQ((*same)[0], x);
  EXPECT_TRUE(infer(x, {DType::kF32, {}}).ok());
  EXPECT_FALSE(infer(x, {DType::kF32, {2}}).ok());
  EXPECT_FALSE(infer(x, {DType::kF64, {3}}).ok());
  EXPECT_FALSE(infer({DType::kF32, {3}}, x).ok());
  EXPECT_FALSE(infer({DType::kI32, {2, 3}}, {DType::kI32, {2, 3}}).ok());
}

}  // namespace
}  // namespace sgactor::graph
