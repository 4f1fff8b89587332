// What a step is expected to take, from which a run is watched before it has measured any.
#include "apps/sgactor/expected_step.h"

#include "graph/compiler/pipeline.h"
#include "graph/compiler/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sgactor::apps {
namespace {

graph::Plan tiny_plan(int32_t dp) {
  graph::CompileOptions options;
  options.mesh.dp = dp;
  options.micro_batch_size = 1;
  options.seq_len = 16;
  return graph::compile_training(*graph::llama_preset("llama-tiny"), options)->plan;
}

class ExpectedStep : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::temp_directory_path() /
            ("sgactor-expected-" + std::to_string(::getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(file_); }
  /// A profile in which each body of `plan` takes so long.
  void write(const graph::Plan& plan, int64_t ns) {
    graph::Profile profile;
    profile.backend = "cpu";
    for (const graph::Subgraph& s : plan.subgraphs) profile.subgraphs[s.structure_hash] = {ns, 5};
    std::ofstream(file_) << graph::write_profile(profile);
    job_.profile.use = file_.string();
  }
  JobSpec job_;
  std::filesystem::path file_;
};

TEST_F(ExpectedStep, IsNotKnownWhereNothingMeasuresTheDevice) {
  const graph::Plan plan = tiny_plan(1);
  EXPECT_EQ(expected_step_ms(job_, plan, "reference", 1), 0) << "the model is of a GPU";
  EXPECT_GT(expected_step_ms(job_, plan, "cuda:all", 1), 0);
}

TEST_F(ExpectedStep, OfACpuIsByFlops) {
  const graph::Plan plan = tiny_plan(1);
  double flops = 0;
  for (const graph::Launch& launch : plan.programs[0].launches) {
    if (launch.kind != graph::LaunchKind::kSubgraph) continue;
    flops += plan.subgraphs[static_cast<size_t>(launch.subgraph)].flops;
  }
  ASSERT_GT(flops, 0);
  EXPECT_NEAR(expected_step_ms(job_, plan, "cpu:2", 1), flops / 20e6, 1e-6);
}

TEST_F(ExpectedStep, FollowsTheProfile) {
  const graph::Plan plan = tiny_plan(1);
  write(plan, 4'000'000);
  const double ms = expected_step_ms(job_, plan, "cpu", 1);
  const auto launches = static_cast<double>(plan.programs[0].lanes[0].order.size());
  EXPECT_NEAR(ms, 4 * launches, 1e-6);
  EXPECT_EQ(expected_step_ms(job_, tiny_plan(1), "cpu", 1), ms);
  // One process that hosts all ranks does the work of all.
  const graph::Plan two = tiny_plan(2);
  const double apart = expected_step_ms(job_, two, "cpu", 2);
  EXPECT_GT(apart, 0);
  EXPECT_NEAR(expected_step_ms(job_, two, "cpu", 1), 2 * apart, 1e-6);
}

TEST_F(ExpectedStep, AProfileOfAnotherModelSaysNothing) {
  graph::Plan other = tiny_plan(1);
  for (graph::Subgraph& s : other.subgraphs) s.structure_hash ^= 1;
  write(other, 4'000'000);
  JobSpec without;
  EXPECT_EQ(expected_step_ms(job_, tiny_plan(1), "cpu", 1),
            expected_step_ms(without, tiny_plan(1), "cpu", 1));
}

}  // namespace
}  // namespace sgactor::apps
