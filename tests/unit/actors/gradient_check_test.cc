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
      EXPECT_EQ(checker_of(plan, of), rank) << dp;
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
  program.buffers.emplace_back().kind = graph::BufferKind::kActivation;
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
  EXPECT_EQ(own_posts(replicas(2), program), (std::vector<bool>{false, true, false, false, false}));
  graph::Plan plan = replicas(2);
  plan.programs.push_back(program);
  EXPECT_TRUE(check_verifiable(plan).ok());
  // Parameters that come from others before anything is computed: nothing is a rank's own.
  plan.programs[0].launches[0].kind = graph::LaunchKind::kAllGather;
  EXPECT_EQ(check_verifiable(plan).code(), Code::kUnsupported);
  plan.mesh.pp = 2;
  EXPECT_EQ(check_verifiable(plan).code(), Code::kUnsupported);
}

TEST(GradientCheck, GathersOfStateAreTheSameForAllAndThoseOfAnythingElseAreNot) {
  // ZeRO 3: a piece of the parameter is gathered for the forward and the backward pass; the norm's
  // sums are gathered behind the reduction.
  graph::RankProgram program;
  for (const auto kind : {graph::BufferKind::kParameter, graph::BufferKind::kActivation,
                          graph::BufferKind::kBatch, graph::BufferKind::kAccumulator}) {
    program.buffers.emplace_back().kind = kind;
  }
  enum Place : int32_t { kPiece = 0, kWhole, kTokens, kSum };
  const auto add = [&](graph::LaunchKind kind, graph::Phase phase,
                       std::vector<graph::LaunchInput> inputs) {
    graph::Launch launch;
    launch.kind = kind;
    launch.phase = phase;
    launch.inputs = std::move(inputs);
    program.launches.push_back(launch);
  };
  using Edge = graph::EdgeKind;
  using Kind = graph::LaunchKind;
  using graph::kNoLaunch;
  add(Kind::kSubgraph, graph::Phase::kPrepare, {{kPiece, kNoLaunch, Edge::kState}});  // narrowed
  add(Kind::kAllGather, graph::Phase::kForward, {{kWhole, 0, Edge::kPrepared}});
  add(Kind::kSubgraph, graph::Phase::kForward,
      {{kWhole, 1, Edge::kSameMicroBatch}, {kTokens, kNoLaunch, Edge::kBatch}});
  add(Kind::kAllGather, graph::Phase::kForward,
      {{kWhole, 2, Edge::kSameMicroBatch}});  // of samples
  add(Kind::kReduceScatter, graph::Phase::kBackward, {{kWhole, 2, Edge::kSameMicroBatch}});
  add(Kind::kSubgraph, graph::Phase::kReduce, {{kWhole, 4, Edge::kLastMicroBatch}});
  add(Kind::kAllGather, graph::Phase::kReduce, {{kWhole, 5, Edge::kSameMicroBatch}});
  add(Kind::kAllGather, graph::Phase::kReduce, {{kSum, kNoLaunch, Edge::kState}});
  add(Kind::kReduceScatter, graph::Phase::kBackward, {{kWhole, 3, Edge::kSameMicroBatch}});
  EXPECT_EQ(shared_gathers(program),
            (std::vector<bool>{false, true, false, false, false, false, false, false, false}));
  EXPECT_EQ(own_posts(replicas(2), program),
            (std::vector<bool>{false, false, false, true, true, false, false, false, false}));
}

TEST(GradientCheck, WhatARankHearsFromItsOwnReplicaIsNotWhatItPosts) {
  // A stage of a pipeline with tensor parallelism: recv -> forward -> all_reduce -> forward ->
  // send, and the gradient's all_reduce among replicas.
  graph::Plan plan = replicas(2);
  plan.groups = {{"dp", graph::MeshAxis::kDp, {}},
                 {"tp", graph::MeshAxis::kTp, {}},
                 {"pp", graph::MeshAxis::kPp, {}}};
  graph::RankProgram program;
  program.buffers.emplace_back().kind = graph::BufferKind::kActivation;
  const auto add = [&](graph::LaunchKind kind, int32_t group,
                       const std::vector<graph::LaunchId>& producers) {
    graph::Launch launch;
    launch.kind = kind;
    launch.phase = graph::Phase::kForward;
    launch.communication.group = group;
    for (const graph::LaunchId p : producers) {
      launch.inputs.push_back({0, p, graph::EdgeKind::kSameMicroBatch});
    }
    program.launches.push_back(launch);
  };
  using Kind = graph::LaunchKind;
  add(Kind::kRecv, 2, {});
  add(Kind::kSubgraph, -1, {0});
  add(Kind::kAllReduce, 1, {1});
  add(Kind::kSubgraph, -1, {2});
  add(Kind::kSend, 2, {3});
  add(Kind::kAllReduce, 0, {3});
  add(Kind::kSubgraph, -1, {5});
  add(Kind::kAllReduce, 1, {6});  // of what all replicas have added: no replica has it alone
  add(Kind::kSend, 2, {2});       // handed on
  EXPECT_EQ(own_posts(plan, program),
            (std::vector<bool>{false, false, true, false, true, true, false, false, false}));
  plan.programs.push_back(program);
  EXPECT_TRUE(check_verifiable(plan).ok());
}

TEST(GradientCheck, AHashTellsPostsApart) {
  EXPECT_NE(post_hash(1, 0, 7), post_hash(0, 1, 7));
  EXPECT_NE(post_hash(1, 0, 7), post_hash(1, 0, 8));
}

}  // namespace
}  // namespace sgactor::actors
