#include "supervision/membership/heartbeats.h"
#include "supervision/membership/votes.h"

#include <gtest/gtest.h>

namespace sgactor::supervision {
namespace {

TEST(Heartbeats, ThreeMissedMakeASuspect) {
  Heartbeats beats;
  beats.watch(7, 1000);
  beats.watch(8, 1000);
  EXPECT_TRUE(beats.heard(8, 1, 200'000));
  EXPECT_TRUE(beats.suspects(301'000).empty());
  EXPECT_EQ(beats.suspects(301'001), std::vector<int32_t>{7});
  EXPECT_EQ(beats.suspects(500'001), (std::vector<int32_t>{7, 8}));
  beats.forget(7);
  EXPECT_EQ(beats.suspects(500'001), std::vector<int32_t>{8});
}

TEST(Heartbeats, AnOvertakenBeatSaysNothing) {
  Heartbeats beats;
  EXPECT_FALSE(beats.heard(1, 1, 0));  // not watched
  beats.watch(1, 0);
  EXPECT_TRUE(beats.heard(1, 5, 100));
  EXPECT_FALSE(beats.heard(1, 4, 400'000));
  EXPECT_FALSE(beats.heard(1, 5, 400'000));
  beats.watch(1, 400'000);  // again: no change
  EXPECT_EQ(beats.suspects(300'101), std::vector<int32_t>{1});
}

World two_ranks() {
  World w;
  w.generation = 3;
  w.committed = 4;
  w.ranks = {{0, 1, 0, 0}, {1, 2, 0, 0}};
  return w;
}

TEST(Votes, AllCurrentIncarnationsMakeTheQuorum) {
  World w = two_ranks();
  Votes votes;
  EXPECT_EQ(votes.on_vote({0, 1, 3, 5}, w), Votes::Outcome::kCounted);
  EXPECT_EQ(votes.on_vote({0, 1, 3, 5}, w), Votes::Outcome::kRepeated);
  EXPECT_EQ(votes.missing(w), std::vector<RankId>{1});
  EXPECT_EQ(votes.on_vote({1, 1, 3, 5}, w), Votes::Outcome::kStale);  // an earlier life
  EXPECT_EQ(votes.on_vote({1, 2, 2, 5}, w), Votes::Outcome::kStale);  // an earlier generation
  EXPECT_EQ(votes.on_vote({9, 1, 3, 5}, w), Votes::Outcome::kStale);
  EXPECT_EQ(votes.on_vote({1, 2, 3, 4}, w), Votes::Outcome::kRepeated);
  EXPECT_EQ(votes.on_vote({1, 2, 3, 6}, w), Votes::Outcome::kAhead);
  EXPECT_EQ(votes.on_vote({1, 2, 3, 5}, w), Votes::Outcome::kAll);
  votes.on_commit();
  w.committed = 5;
  EXPECT_EQ(votes.on_vote({1, 2, 3, 6}, w), Votes::Outcome::kCounted);
}

TEST(Votes, AChangeOfMembershipForgetsThem) {
  World w = two_ranks();
  Votes votes;
  EXPECT_EQ(votes.on_vote({0, 1, 3, 5}, w), Votes::Outcome::kCounted);
  w.generation = 4;
  w.ranks[1].incarnation = 3;
  votes.on_membership();
  EXPECT_EQ(votes.on_vote({1, 3, 4, 5}, w), Votes::Outcome::kCounted);
  EXPECT_EQ(votes.on_vote({0, 1, 4, 5}, w), Votes::Outcome::kAll);
}

}  // namespace
}  // namespace sgactor::supervision
