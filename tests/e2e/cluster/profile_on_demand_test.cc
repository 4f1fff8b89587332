// `sgactor ctl RUN profile`: times of a run that goes on.
#include "tests/e2e/cluster/cluster_program.h"

#include <nlohmann/json.hpp>

namespace sgactor::tests {
namespace {

using nlohmann::json;

class ProfileOnDemand : public ClusterTest {};

TEST_F(ProfileOnDemand, ARunThatGoesOnTellsItsTimesAndKeepsItsBits) {
  const std::vector<std::string> job = {"--workers",
                                        "2",
                                        "--parallelism.data_parallel_degree=1",
                                        "--parallelism.pipeline_parallel_degree=2",
                                        "--training.micro_batch_size=1",
                                        "--training.global_batch_size=4",
                                        "--data.validation_fraction=0.1",
                                        "--training.validation_interval=1",
                                        "--training.validation_batches=1",
                                        "--checkpoint.interval=0",
                                        "--log.sample_tokens=0"};
  const auto steps = [&](int n) {
    std::vector<std::string> args = job;
    args.push_back("--training.steps=" + std::to_string(n));
    args.emplace_back("--optimizer.decay_steps=1000");
    return args;
  };
  const int going = start(train("run", steps(100000)));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") > 5; })) << read(".err");
  const ProgramResult asked = run({"ctl", path("run"), "profile", "3"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_NE(asked.out.find("profile.json"), std::string::npos) << asked.out;
  kill(going, SIGINT);
  EXPECT_EQ(wait(going).exit_code, 130);

  const json profile = json::parse(read("run/profile.json"));
  EXPECT_EQ(profile["backend"], "cpu");
  EXPECT_GT(profile["subgraphs"].size(), 5U);
  std::set<std::string> kinds;
  for (const json& c : profile["collectives"]) {
    kinds.insert(c["kind"].get<std::string>());
    EXPECT_EQ(c["members"], 2);
  }
  EXPECT_TRUE(kinds.contains("send") && kinds.contains("recv")) << profile["collectives"];
  // Three steps of four micro-batches, whatever was validated between them.
  for (const json& s : profile["subgraphs"]) EXPECT_EQ(s["count"].get<int64_t>() % 3, 0) << s;

  const int64_t done = num_steps("run");
  const ProgramResult quiet =
      run(train("quiet", steps(static_cast<int>(std::min<int64_t>(done, 20)))));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  const std::vector<std::string> want = loss_bits("quiet");
  std::vector<std::string> got = loss_bits("run");
  got.resize(want.size());
  EXPECT_EQ(got, want);
  // The next plan goes by them.
  std::vector<std::string> plan = {"plan", "job.toml", "--passes", "--optimizer.decay_steps=1000",
                                   "--profile.use=" + path("run/profile.json")};
  plan.insert(plan.end(), job.begin() + 2, job.end());
  const ProgramResult next = run(plan);
  ASSERT_EQ(next.exit_code, 0) << next.err;
  const std::string all = std::to_string(profile["subgraphs"].size());
  EXPECT_NE(next.out.find(all + " of " + all + " subgraphs measured"), std::string::npos)
      << next.out;
}

TEST_F(ProfileOnDemand, WhatCannotBeRecordedIsRefused) {
  const ProgramResult nobody = run({"ctl", path("run"), "profile", "3"});
  EXPECT_EQ(nobody.exit_code, 2);
  EXPECT_NE(nobody.err.find("no run of several processes goes on here"), std::string::npos);
  const int going = start(train("run", {"--workers", "2", "--training.steps=100000"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") > 1; })) << read(".err");
  for (const char* steps : {"0", "1001", "-3", "many"}) {
    const ProgramResult r = run({"ctl", path("run"), "profile", steps});
    EXPECT_EQ(r.exit_code, 2) << steps;
    EXPECT_NE(r.err.find("expected a number of steps from 1 to 1000"), std::string::npos) << r.err;
  }
  kill(going, SIGINT);
  EXPECT_EQ(wait(going).exit_code, 130);
}

}  // namespace
}  // namespace sgactor::tests
