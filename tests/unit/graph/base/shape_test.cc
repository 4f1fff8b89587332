#include "graph/base/shape.h"

#include <gtest/gtest.h>

namespace sgactor {
namespace {

TEST(ShapeTest, ScalarHasOneElement) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.num_elements(), 1);
  EXPECT_EQ(scalar.to_string(), "[]");
}

TEST(ShapeTest, DimsCountFromBothEnds) {
  Shape shape{2, 3, 5};
  EXPECT_EQ(shape.dim(0), 2);
  EXPECT_EQ(shape.dim(-1), 5);
  EXPECT_EQ(shape.num_elements(), 30);
  shape.set_dim(-2, 7);
  EXPECT_EQ(shape, (Shape{2, 7, 5}));
  shape.set_dim(0, 0);
  EXPECT_EQ(shape.num_elements(), 0);
}

TEST(ShapeTest, TypePrintsAndMeasures) {
  const TensorType type{DType::kBF16, Shape{4096, 2048}};
  EXPECT_EQ(type.to_string(), "bf16[4096, 2048]");
  EXPECT_EQ(type.bytes(), 2 * 4096 * 2048);
  EXPECT_NE(type, (TensorType{DType::kF16, Shape{4096, 2048}}));
  EXPECT_NE(type, (TensorType{DType::kBF16, Shape{2048, 4096}}));
}

}  // namespace
}  // namespace sgactor
