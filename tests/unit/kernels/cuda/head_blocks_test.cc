// Letters: N rows, V vocabulary.
#include "kernels/cuda/head_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::kernels::cuda {
namespace {

constexpr int64_t kLimit = 9 * kGiB / 4;  // the head's own

TEST(RowBlocks, AreBoundedAndCoverAllRowsOfAnyVocabulary) {
  for (const int64_t V : {32000, 262144, 262145, 300000, 1 << 20, 20'000'003}) {
    for (const int64_t element : {2, 4, 8}) {
      for (const int64_t N : {1, 127, 128, 129, 4096, 8192, 8191, 100'000}) {
        const int64_t row_bytes = V * element;
        const RowBlocks cut(N, row_bytes, kLimit);
        SCOPED_TRACE(testing::Message() << N << " rows of " << row_bytes << " bytes");
        ASSERT_GT(cut.rows, 0);
        const int64_t held = std::min(cut.rows, N);
        EXPECT_LE(held * row_bytes, kLimit);
        EXPECT_GE(cut.bytes, held * row_bytes);
        EXPECT_LT(cut.bytes, held * row_bytes + 256);
        // Equal but for the last, in as few as the limit allows where rows keep to the grain.
        const int64_t blocks = ceil_div(N, cut.rows);
        EXPECT_LT((blocks - 1) * cut.rows, N);
        const int64_t most = kLimit / row_bytes;
        if (most >= N) {
          EXPECT_EQ(blocks, 1);
        }
        if (most < N && most >= kRowGrain) {
          EXPECT_EQ(cut.rows % kRowGrain, 0);
        }
        if (most >= 2 * kRowGrain) {
          EXPECT_LE(blocks, ceil_div(N, most - kRowGrain));
        }
      }
    }
  }
}

TEST(RowBlocks, OfAVocabularyAbove262144) {
  // 600 kB a row: 4026 rows fit, 3968 of them in whole grains; three equal blocks of 8192 rows.
  const RowBlocks cut(8192, int64_t{300000} * 2, kLimit);
  EXPECT_EQ(cut.rows, 2816);
  EXPECT_EQ(cut.bytes, int64_t{2816} * 600000);
}

TEST(RowBlocks, ARowAboveTheLimitStandsAlone) {
  const RowBlocks cut(5, kLimit + 1, kLimit);
  EXPECT_EQ(cut.rows, 1);
  EXPECT_GE(cut.bytes, kLimit + 1);
}

/// From 262144 entries of four bytes on, 128 MiB is less than a grain of rows.
TEST(RowBlocks, TheLeastRoomHoldsAGrainOfRows) {
  EXPECT_EQ(least_room(8192, int64_t{32000} * 4), 1049 * int64_t{32000} * 4);
  for (const int64_t V : {262144, 262145, 1 << 20}) {
    const int64_t row_bytes = V * 4;
    EXPECT_EQ(least_room(8192, row_bytes), kRowGrain * row_bytes) << V;
    EXPECT_EQ(least_room(5, row_bytes), 5 * row_bytes) << V;
    // Such a room is cut into blocks that fit.
    const RowBlocks cut(8192, row_bytes, least_room(8192, row_bytes));
    EXPECT_EQ(cut.rows, kRowGrain) << V;
    EXPECT_LE(cut.bytes, round_up(least_room(8192, row_bytes), 256)) << V;
  }
}

}  // namespace
}  // namespace sgactor::kernels::cuda
