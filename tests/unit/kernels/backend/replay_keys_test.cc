#include "kernels/backend/replay_keys.h"

#include <gtest/gtest.h>

#include <array>

namespace sgactor::kernels {
namespace {

using Way = ReplayKeys::Way;

class ReplayKeysTest : public ::testing::Test {
 protected:
  /// A launch whose pointers are `first`, its neighbours, and `scratch`.
  ReplayKeys::Turn launch(size_t first, size_t scratch = 0) {
    const std::array<std::byte*, 2> in = {&memory_[first], &memory_[first + 1]};
    const std::array<std::byte*, 1> out = {&memory_[first + 2]};
    return keys_.next({in, out, &memory_[first + 3], &memory_[scratch]});
  }
  /// One that is recorded if asked to be.
  Way run(size_t first, size_t scratch = 0) {
    const ReplayKeys::Turn turn = launch(first, scratch);
    if (turn.way == Way::kRecord) keys_.recorded(turn.key);
    return turn.way;
  }

  std::array<std::byte, 64> memory_{};
  ReplayKeys keys_{3};
};

TEST_F(ReplayKeysTest, FirstPlainThenRecordedThenReplayed) {
  EXPECT_EQ(run(0), Way::kPlain);
  EXPECT_EQ(run(0), Way::kRecord);
  EXPECT_EQ(run(0), Way::kReplay);
  EXPECT_EQ(run(0), Way::kReplay);
}

TEST_F(ReplayKeysTest, EachSetOfPointersHasItsOwn) {
  for (const size_t first : {0U, 8U}) EXPECT_EQ(run(first), Way::kPlain);
  EXPECT_EQ(run(0, 9), Way::kPlain);  // scratch counts as well
  const auto a = launch(0);
  const auto b = launch(8);
  EXPECT_EQ(a.way, Way::kRecord);
  EXPECT_EQ(b.way, Way::kRecord);
  EXPECT_NE(a.key, b.key);
  keys_.recorded(b.key);
  EXPECT_EQ(launch(0).way, Way::kRecord);
  EXPECT_EQ(launch(8).way, Way::kReplay);
  EXPECT_EQ(launch(8).key, b.key);
}

TEST_F(ReplayKeysTest, BeyondItsRoomLaunchesStayPlain) {
  for (const size_t first : {0U, 8U, 16U}) {
    EXPECT_EQ(run(first), Way::kPlain);
    EXPECT_EQ(run(first), Way::kRecord);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(24), Way::kPlain);
  for (const size_t first : {0U, 8U, 16U}) EXPECT_EQ(run(first), Way::kReplay);
}

TEST_F(ReplayKeysTest, GivesUpForGood) {
  run(0);
  run(0);
  keys_.give_up();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(0), Way::kPlain);
}

}  // namespace
}  // namespace sgactor::kernels
