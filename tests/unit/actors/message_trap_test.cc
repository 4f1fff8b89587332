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

TEST(MessageTrap, HoldsWhatWasArmedLast) {
  MessageTrap trap;
  trap.arm(Action::kThrow, 5, 1);
  trap.arm(Action::kStop, 8, 2);
  EXPECT_EQ(trap.take(5), std::nullopt);
  EXPECT_EQ(trap.take(8), std::nullopt);
  EXPECT_EQ(trap.take(8), Action::kStop);
}

}  // namespace
}  // namespace sgactor::actors
