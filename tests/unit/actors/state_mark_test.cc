#include "actors/runtime/state_mark.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

StepDone done(int64_t step) {
  StepDone out;
  out.step = step;
  out.tokens = 100 + step;
  return out;
}

TEST(StateMark, WhatIsThereIsToldAtOnce) {
  StateMark mark(2, 7);
  EXPECT_EQ(mark.step(), 7);
  int64_t told = -1;
  mark.when(7, [&](const StepDone& d) { told = d.step; });
  EXPECT_EQ(told, 7);
}

TEST(StateMark, AnUpdateUnderWayIsWaitedFor) {
  StateMark mark(0, 0);
  int64_t tokens = 0;
  mark.leave();
  EXPECT_EQ(mark.step(), -1);
  mark.when(1, [&](const StepDone& d) { tokens = d.tokens; });
  EXPECT_EQ(tokens, 0);
  mark.reach(done(1));
  EXPECT_EQ(tokens, 101);
  EXPECT_EQ(mark.step(), 1);
  mark.leave();
  mark.reach(done(2));
  EXPECT_EQ(tokens, 101) << "told once";
}

TEST(StateMark, WhoeverHasNotVotedYetIsWaitedFor) {
  StateMark mark(0, 4);
  int told = 0;
  mark.when(5, [&](const StepDone&) { ++told; });
  EXPECT_EQ(told, 0);
  mark.leave();
  mark.reach(done(5));
  EXPECT_EQ(told, 1);
}

TEST(StateMark, WhatIsGoneIsNeverTold) {
  StateMark mark(0, 4);
  int told = 0;
  mark.when(3, [&](const StepDone&) { ++told; });
  mark.leave();
  mark.when(4, [&](const StepDone&) { ++told; });
  mark.reach(done(5));
  mark.leave();
  mark.reach(done(6));
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace sgactor::actors
