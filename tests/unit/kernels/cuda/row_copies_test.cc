#include "kernels/cuda/row_copies.h"

#include <gtest/gtest.h>

namespace sgactor::kernels::cuda {
namespace {

constexpr int64_t kTwoGiB = int64_t{1} << 31;

TEST(RowCopies, NothingAndOnePiece) {
  EXPECT_EQ(row_copy(0, 8, 16, 8), RowCopy::kNone);
  EXPECT_EQ(row_copy(4, 0, 16, 8), RowCopy::kNone);
  EXPECT_EQ(row_copy(1, 8, 4 * kTwoGiB, 8), RowCopy::kOne);
  EXPECT_EQ(row_copy(4, 2 * kTwoGiB, 2 * kTwoGiB, 2 * kTwoGiB), RowCopy::kOne);
}

TEST(RowCopies, APitchAboveTheLimitGoesRowByRow) {
  EXPECT_EQ(row_copy(4, 8, 16, 8), RowCopy::kPitched);
  EXPECT_EQ(row_copy(2, 8, 8, kTwoGiB - 1), RowCopy::kPitched);
  EXPECT_EQ(row_copy(2, 8, 8, kTwoGiB), RowCopy::kEach);
  EXPECT_EQ(row_copy(2, 8, kTwoGiB, 8), RowCopy::kEach);
  EXPECT_EQ(row_copy(2, kTwoGiB, kTwoGiB, kTwoGiB + 64), RowCopy::kEach);
}

}  // namespace
}  // namespace sgactor::kernels::cuda
