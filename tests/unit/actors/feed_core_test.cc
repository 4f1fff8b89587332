#include "actors/core/feed_core.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

TEST(FeedCore, PreparesAheadAsFarAsSlotsAreFree) {
  FeedCore core(3, 4, 2, 3);  // steps 3 and 4 with two micro-batches, three slots
  EXPECT_EQ(core.next_to_prepare(), (FeedCore::Item{3, 0, 0}));
  EXPECT_EQ(core.next_to_prepare(), (FeedCore::Item{3, 1, 1}));
  EXPECT_EQ(core.next_to_prepare(), (FeedCore::Item{4, 0, 2}));
  EXPECT_FALSE(core.next_to_prepare());
  EXPECT_FALSE(core.prepared(3, 0));
  ASSERT_TRUE(core.on_prepared(3, 0).ok());
  EXPECT_EQ(core.prepared(3, 0), (FeedCore::Item{3, 0, 0}));
  EXPECT_FALSE(core.on_consumed(3, 1).ok());
  ASSERT_TRUE(core.on_consumed(3, 0).ok());
  EXPECT_FALSE(core.prepared(3, 0));
  EXPECT_EQ(core.next_to_prepare(), (FeedCore::Item{4, 1, 0}));
  ASSERT_TRUE(core.on_prepared(3, 1).ok());
  ASSERT_TRUE(core.on_prepared(4, 0).ok());
  ASSERT_TRUE(core.on_consumed(3, 1).ok());
  EXPECT_FALSE(core.next_to_prepare());  // nothing after the last step
}

TEST(FeedCore, RefusesWhatIsOutOfOrder) {
  FeedCore core(1, 9, 1, 2);
  EXPECT_FALSE(core.on_prepared(1, 0).ok());
  ASSERT_TRUE(core.next_to_prepare());
  EXPECT_FALSE(core.on_prepared(2, 0).ok());
  EXPECT_FALSE(core.on_consumed(1, 0).ok());
}

TEST(CreditCore, NeverGivesMoreThanItHas) {
  CreditCore credits(2);
  EXPECT_TRUE(credits.take(2));
  EXPECT_FALSE(credits.take());
  EXPECT_TRUE(credits.give().ok());
  EXPECT_EQ(credits.num_free(), 1);
  EXPECT_FALSE(credits.give(2).ok());
  EXPECT_EQ(credits.num_free(), 1);
}

}  // namespace
}  // namespace sgactor::actors
