#include "supervision/recovery/replicas.h"

#include <gtest/gtest.h>

namespace sgactor::supervision {
namespace {

using enum Holder;

/// Ranks in order of stage, data-parallel and tensor-parallel rank.
graph::Plan mesh(int32_t pp, int32_t dp, int32_t tp) {
  graph::Plan plan;
  plan.mesh.pp = pp;
  plan.mesh.dp = dp;
  plan.mesh.tp = tp;
  for (int32_t p = 0; p < pp; ++p) {
    for (int32_t d = 0; d < dp; ++d) {
      for (int32_t t = 0; t < tp; ++t) plan.ranks.push_back({p, d, t, 0});
    }
  }
  plan.programs.emplace_back();
  return plan;
}

TEST(Replicas, TheLowestThatLivesWrites) {
  const graph::Plan plan = mesh(1, 3, 1);
  EXPECT_EQ(*choose_replicas(plan, {kWhole, kWhole, kWhole}), (std::vector<int32_t>{0}));
  EXPECT_EQ(*choose_replicas(plan, {kGone, kWhole, kWhole}), (std::vector<int32_t>{1}));
  EXPECT_EQ(*choose_replicas(plan, {kGone, kGone, kWhole}), (std::vector<int32_t>{2}));
}

TEST(Replicas, EachPartHasAWriterOfItsOwn) {
  // Ranks 0 1 2 3 are stage 0 (two data-parallel by two tensor-parallel), 4 5 6 7 stage 1.
  const graph::Plan plan = mesh(2, 2, 2);
  std::vector<Holder> holders(8, kWhole);
  EXPECT_EQ(*choose_replicas(plan, holders), (std::vector<int32_t>{0, 1, 4, 5}));
  holders[1] = kGone;
  holders[4] = kGone;
  EXPECT_EQ(*choose_replicas(plan, holders), (std::vector<int32_t>{0, 3, 6, 5}));
}

TEST(Replicas, WhoHasFailedWritesOnlyIfNobodyElseCan) {
  const graph::Plan plan = mesh(1, 2, 1);
  EXPECT_EQ(*choose_replicas(plan, {kDoubtful, kWhole}), (std::vector<int32_t>{1}));
  EXPECT_EQ(*choose_replicas(plan, {kDoubtful, kGone}), (std::vector<int32_t>{0}));
}

TEST(Replicas, APartThatNobodyHoldsIsNamed) {
  const graph::Plan plan = mesh(2, 2, 1);
  const auto chosen = choose_replicas(plan, {kWhole, kWhole, kGone, kGone});
  ASSERT_FALSE(chosen.ok());
  EXPECT_EQ(chosen.status().code(), Code::kDisconnected);
  EXPECT_EQ(chosen.status().scope(), Scope::kJob);
  EXPECT_NE(chosen.status().message().find("ranks 2, 3 (stage 1"), std::string::npos)
      << chosen.status().message();
}

TEST(Replicas, PlansThatHaveNoneSayWhy) {
  EXPECT_EQ(no_replicas(mesh(1, 2, 1)), "");
  EXPECT_NE(no_replicas(mesh(1, 1, 2)).find("data_parallel_degree"), std::string::npos);
  graph::Plan sharded = mesh(1, 2, 1);
  sharded.zero_stage = 1;
  EXPECT_NE(no_replicas(sharded).find("zero_stage"), std::string::npos);
  graph::Plan talks = mesh(1, 2, 1);
  graph::Launch& launch = talks.programs[0].launches.emplace_back();
  launch.phase = graph::Phase::kUpdate;
  launch.kind = graph::LaunchKind::kAllReduce;
  EXPECT_NE(no_replicas(talks).find("communicates"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::supervision
