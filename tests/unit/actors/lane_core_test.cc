#include "actors/core/lane_core.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

TEST(LaneCore, FiresOnlyWithTheTurnAndReady) {
  LaneCore lane;
  lane.mark_ready({1, 3});
  EXPECT_FALSE(lane.take());
  ASSERT_TRUE(lane.offer({1, 2}).ok());
  EXPECT_FALSE(lane.take());  // the turn is at 2, ready is 3
  lane.mark_ready({1, 2});
  EXPECT_EQ(lane.take(), (LanePoint{1, 2}));
  EXPECT_EQ(lane.take(), (LanePoint{1, 3}));
  EXPECT_FALSE(lane.take());
  EXPECT_EQ(lane.pass(), (LanePoint{1, 4}));
  EXPECT_FALSE(lane.holds_token());
  EXPECT_EQ(lane.num_ready(), 0U);
}

TEST(LaneCore, ReadinessOfAnotherStepDoesNotCount) {
  LaneCore lane;
  lane.mark_ready({2, 0});
  ASSERT_TRUE(lane.offer({1, 0}).ok());
  EXPECT_FALSE(lane.take());
  lane.mark_ready({1, 0});
  lane.mark_ready({1, 0});
  EXPECT_TRUE(lane.take());
  lane.pass();
  EXPECT_EQ(lane.num_ready(), 1U);
  ASSERT_TRUE(lane.offer({2, 0}).ok());
  EXPECT_EQ(lane.take(), (LanePoint{2, 0}));
}

TEST(LaneCore, RefusesASecondAndAnOldToken) {
  LaneCore lane;
  ASSERT_TRUE(lane.offer({1, 5}).ok());
  EXPECT_FALSE(lane.offer({1, 6}).ok());
  lane.mark_ready({1, 5});
  EXPECT_TRUE(lane.take());
  lane.pass();
  EXPECT_FALSE(lane.offer({1, 5}).ok());
  EXPECT_TRUE(lane.offer({2, 0}).ok());
}

}  // namespace
}  // namespace sgactor::actors
