#include "supervision/recovery/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::supervision {
namespace {

// Nodes 0 and 1; workers 0, 1 on node 0 and 2, 3 on node 1.
std::vector<Member> four() { return {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 1, 0, 1}, {3, 1, 1, 1}}; }
std::vector<Member> without(std::vector<Member> members, std::vector<WorkerId> gone) {
  std::erase_if(members, [&](const Member& m) {
    return std::find(gone.begin(), gone.end(), m.worker) != gone.end();
  });
  return members;
}

TEST(Placement, FirstWorldLeavesSparesAndMirrorsElsewhere) {
  const auto w = initial_world(3, {0, 1}, four(), {});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->generation, 1);
  EXPECT_EQ(w->ranks[0], (RankPlace{0, 1, 1, kNone}));
  EXPECT_EQ(w->ranks[1], (RankPlace{1, 1, 1, kNone}));
  EXPECT_EQ(w->ranks[2], (RankPlace{2, 1, 0, kNone}));
  EXPECT_EQ(w->num_hosted(3), 0);
}

TEST(Placement, FewerWorkersHostBlocksOfRanks) {
  const auto w = initial_world(4, {0}, without(four(), {2, 3}), {});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->ranks[1].worker, 0);
  EXPECT_EQ(w->ranks[2].worker, 1);
  EXPECT_EQ(w->ranks[2].mirror, 0);  // one node: its process still outlives a worker
  EXPECT_EQ(initial_world(9, {0}, without(four(), {2, 3}), {}).status().code(), Code::kOverloaded);
}

World committed_world(int32_t ranks) {
  World w = *initial_world(ranks, {0, 1}, four(), {});
  w.committed = 1;
  for (RankPlace& p : w.ranks) p.source = p.mirror;
  return w;
}

TEST(Placement, ADeadWorkersRankGoesToTheNearestSpare) {
  const World before = committed_world(2);  // ranks on 0 and 1, spares 2 and 3 on node 1
  const auto w = replace_members(before, {0, 1}, without(four(), {0}), {});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->generation, 2);
  EXPECT_EQ(w->ranks[0].worker, 2);
  EXPECT_EQ(w->ranks[0].incarnation, 2);
  // It lives where its mirror is now: another node mirrors, the old one serves the state.
  EXPECT_EQ(w->ranks[0].mirror, 0);
  EXPECT_EQ(w->ranks[0].source, 1);
  EXPECT_EQ(w->ranks[1], before.ranks[1]);  // survivors do not move
}

TEST(Placement, SameNodeBeforeLowerId) {
  World before = committed_world(2);
  before.ranks[0].worker = 1;
  before.ranks[1].worker = 2;  // spares: worker 0 on node 0, worker 3 on node 1
  const auto w = replace_members(before, {0, 1}, without(four(), {2}), {});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->ranks[1].worker, 3);
}

TEST(Placement, WithoutASpareItShrinksAndThenStops) {
  const World before = committed_world(4);
  PlacementOptions options;
  options.max_ranks_per_worker = 2;
  const auto w = replace_members(before, {0, 1}, without(four(), {0, 2}), options);
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->num_hosted(1), 2);
  EXPECT_EQ(w->num_hosted(3), 2);
  EXPECT_EQ(replace_members(*w, {0, 1}, without(four(), {0, 1, 2}), options).status().code(),
            Code::kOverloaded);
}

TEST(Placement, AForeignFingerprintIsNoSpare) {
  const World before = committed_world(3);
  std::vector<Member> members = without(four(), {0});
  members[2].fingerprint = 9;
  PlacementOptions options;
  const auto strict = replace_members(before, {0, 1}, members, options);
  ASSERT_TRUE(strict.ok());
  EXPECT_NE(strict->ranks[0].worker, 3);
  options.allow_inexact = true;
  EXPECT_EQ(replace_members(before, {0, 1}, members, options)->ranks[0].worker, 3);
}

TEST(Placement, ALostNodeTakesItsMirrorsAlong) {
  const World before = committed_world(2);  // both mirrored on node 1
  const auto w = replace_members(before, {0}, without(four(), {2, 3}), {});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->ranks[0].source, kNone);
  EXPECT_EQ(w->ranks[0].mirror, 0);
  EXPECT_EQ(w->ranks[0].incarnation, 1);
  // A second node comes: mirrors move away from their ranks' own node.
  auto members = without(four(), {2, 3});
  members.push_back({4, 2, 0, 1});
  const auto again = replace_members(*w, {0, 2}, members, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->ranks[0].mirror, 2);
  EXPECT_EQ(again->ranks[0].source, 0);  // the old one may be whole already
}

TEST(Placement, RebalanceGrowsOnlyWhatHasASecondCopy) {
  World w = committed_world(4);
  w.ranks[1].worker = 0;  // worker 0 hosts two, worker 1 none
  const World grown = rebalance(w, {});
  EXPECT_EQ(grown.generation, w.generation + 1);
  EXPECT_EQ(grown.num_hosted(0), 1);
  EXPECT_EQ(grown.num_hosted(1), 1);
  EXPECT_EQ(grown.ranks[1].incarnation, 2);
  EXPECT_EQ(rebalance(grown, {}), grown);  // nothing left to move
  for (RankPlace& p : w.ranks) p.source = kNone;
  EXPECT_EQ(rebalance(w, {}), w);
}

}  // namespace
}  // namespace sgactor::supervision
