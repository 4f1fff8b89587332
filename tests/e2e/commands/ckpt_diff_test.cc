// `sgactor ckpt diff`: two checkpoints by their logical tensors.
#include "tests/e2e/cli/program.h"

#include <nlohmann/json.hpp>

namespace sgactor::tests {
namespace {

using nlohmann::json;

class CkptDiff : public ProgramTest {
 protected:
  void trained(const std::string& run_dir, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"train", "job.toml", "--run-dir", run_dir,
                                     "--data.validation_fraction=0"};
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult r = run(args);
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
};

TEST_F(CkptDiff, MeshesOfOneJobHaveTheSameTensors) {
  trained("a", {"--parallelism.data_parallel_degree=2"});
  trained("b", {"--parallelism.data_parallel_degree=2", "--parallelism.zero_stage=3"});
  const ProgramResult r = run({"ckpt", "diff", "a", "b/ckpt/step-00000006"});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find("equal: all bits of"), std::string::npos) << r.out;
  const json j = json::parse(run({"ckpt", "diff", "a", "b", "--json"}).out);
  EXPECT_TRUE(j["equal"]);
  EXPECT_TRUE(j["different"].empty());
  EXPECT_EQ(j["a"]["step"], 6);
}

TEST_F(CkptDiff, AStepMovesEveryWeight) {
  trained("a");
  const ProgramResult r = run({"ckpt", "diff", "a/ckpt/step-00000004", "a"});
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_NE(r.out.find("model.norm.weight  32 of 32 elements differ"), std::string::npos) << r.out;
  const json j = json::parse(run({"ckpt", "diff", "a/ckpt/step-00000004", "a", "--json"}).out);
  EXPECT_FALSE(j["equal"]);
  EXPECT_EQ(j["different"].size(), j["tensors"].get<size_t>());
  for (const json& d : j["different"]) {
    EXPECT_GT(d["max_absolute"].get<double>(), 0) << d;
    EXPECT_LE(d["max_relative"].get<double>(), 2) << d;
  }
}

TEST_F(CkptDiff, WhatIsNoCheckpointIsRefused) {
  trained("a");
  expect_refused({"ckpt", "diff", "a", "nowhere"}, {"nowhere"});
  expect_refused({"ckpt", "diff", "tiny", "a"}, {"tiny"});
  std::filesystem::remove(path("a/ckpt/step-00000006/COMMIT"));
  expect_refused({"ckpt", "diff", "a/ckpt/step-00000006", "a"}, {"COMMIT"});
}

}  // namespace
}  // namespace sgactor::tests
