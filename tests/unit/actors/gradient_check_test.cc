#include "actors/runtime/gradient_check.h"

#include <gtest/gtest.h>

#include <set>

namespace sgactor::actors {
namespace {

graph::Plan replicas(int32_t dp) {
  graph::Plan plan;
  plan.mesh.dp = dp;
  for (int32_t d = 0; d < dp; ++d) plan.ranks.push_back({0, d, 0, 0});
  return plan;
}

TEST(GradientCheck, EveryRankIsCheckedOnceAndByAnother) {
  for (const int32_t dp : {2, 3, 4, 5, 8}) {
    const graph::Plan plan = replicas(dp);
    std::set<int32_t> checked;
    for (int32_t rank = 0; rank < dp; ++rank) {
      const int32_t of = buddy_of(plan, rank);
      EXPECT_NE(of, rank) << dp;
      EXPECT_TRUE(checked.insert(of).second) << dp;
      const int32_t umpire = umpire_of(plan, of);
      EXPECT_NE(umpire, rank) << "the third run is not the second one's, of " << dp;
      EXPECT_EQ(umpire == of, dp < 3) << dp;
    }
  }
  EXPECT_EQ(buddy_of(replicas(1), 0), 0);
  EXPECT_EQ(umpire_of(replicas(1), 0), 0);
}

TEST(GradientCheck, TheMajorityNamesTheLiar) {
  EXPECT_EQ(find_liar(1, 2, 2), Liar::kRank);
  EXPECT_EQ(find_liar(1, 2, 1), Liar::kChecker);
  EXPECT_EQ(find_liar(1, 2, 3), Liar::kRank);
}

TEST(GradientCheck, ThatOthersHaveSentSomethingIsSeenThroughWhateverReadsIt) {
  // backward -> all_reduce -> norm -> all_reduce of the norm; update reads it.
  graph::RankProgram program;
  const auto add = [&](graph::LaunchKind kind, graph::Phase phase, graph::LaunchId producer) {
    graph::Launch launch;
    launch.kind = kind;
    launch.phase = phase;
    launch.inputs.push_back({0, producer, graph::EdgeKind::kSameMicroBatch});
    program.launches.push_back(launch);
  };
  add(graph::LaunchKind::kSubgraph, graph::Phase::kBackward, graph::kNoLaunch);
  add(graph::LaunchKind::kAllReduce, graph::Phase::kBackward, 0);
  add(graph::LaunchKind::kSubgraph, graph::Phase::kBackward, 1);
  add(graph::LaunchKind::kAllReduce, graph::Phase::kBackward, 2);
  add(graph::LaunchKind::kSubgraph, graph::Phase::kUpdate, 3);
  EXPECT_EQ(own_posts(program), (std::vector<bool>{false, true, false, false, false}));
  graph::Plan plan = replicas(2);
  plan.programs.push_back(program);
  EXPECT_TRUE(check_verifiable(plan).ok());
  // Parameters that come from others before anything is computed: nothing is a rank's own.
  plan.programs[0].launches[0].kind = graph::LaunchKind::kAllGather;
  EXPECT_EQ(check_verifiable(plan).code(), Code::kUnsupported);
  plan.mesh.pp = 2;
  EXPECT_EQ(check_verifiable(plan).code(), Code::kUnsupported);
}

TEST(GradientCheck, AHashTellsPostsApart) {
  EXPECT_NE(post_hash(1, 0, 7), post_hash(0, 1, 7));
  EXPECT_NE(post_hash(1, 0, 7), post_hash(1, 0, 8));
}

}  // namespace
}  // namespace sgactor::actors
