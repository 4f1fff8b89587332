#include "actors/runtime/message_trap.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

using Action = MessageTrap::Action;

TEST(MessageTrap, StrikesOnceAtItsMessage) {
  MessageTrap trap;
  EXPECT_EQ(trap.take(5), std::nullopt);
  trap.arm(Action::kKill, 5, 3);
  EXPECT_EQ(trap.take(4), std::nullopt);
  EXPECT_EQ(trap.take(5), std::nullopt);
  EXPECT_EQ(trap.take(6), std::nullopt);  // a feeder that is ahead
  EXPECT_EQ(trap.take(5), std::nullopt);
  EXPECT_EQ(trap.take(5), Action::kKill);
  EXPECT_EQ(trap.take(5), std::nullopt);
  EXPECT_EQ(trap.take(9), std::nullopt);
}

TEST(MessageTrap, StrikesLaterWhereTheStepHasFewer) {
  MessageTrap trap;
  trap.arm(Action::kThrow, 5, 100);
  EXPECT_EQ(trap.take(5), std::nullopt);
  EXPECT_EQ(trap.take(6), std::nullopt);
  EXPECT_EQ(trap.take(7), Action::kThrow);
}

TEST(MessageTrap, StrikesAtTheNextMessageIfNoneIsNamed) {
  for (const int64_t step : {-1, 0, 1, 7}) {
    MessageTrap trap;
    trap.arm(Action::kThrow);
    EXPECT_EQ(trap.take(step), Action::kThrow);
    EXPECT_EQ(trap.take(step), std::nullopt);
  }
}

TEST(MessageTrap, HoldsAllThatAreArmed) {
  MessageTrap trap;
  trap.arm(Action::kStop, 8, 2);
  trap.arm(Action::kThrow, 5, 1);
  trap.arm(Action::kKill, 5, 2);
  EXPECT_EQ(trap.take(5), Action::kThrow);
  EXPECT_EQ(trap.take(5), Action::kKill);
  EXPECT_EQ(trap.take(8), std::nullopt);
  EXPECT_EQ(trap.take(8), Action::kStop);
}

TEST(MessageTrap, TwoOfOneMessageStrikeOneAfterTheOther) {
  MessageTrap trap;
  trap.arm(Action::kThrow, 5, 1);
  trap.arm(Action::kStall, 5, 1);
  EXPECT_EQ(trap.take(5), Action::kThrow);
  EXPECT_EQ(trap.take(5), Action::kStall);
}

}  // namespace
}  // namespace sgactor::actors
