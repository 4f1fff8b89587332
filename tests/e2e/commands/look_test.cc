// Commands that look: `topo`, `top`, `bench kernels`.
#include "tests/e2e/cluster/cluster_program.h"

#include <nlohmann/json.hpp>

namespace sgactor::tests {
namespace {

using nlohmann::json;

class Look : public ClusterTest {};

TEST_F(Look, TopoSaysWhatThisHostHas) {
  const ProgramResult r = run({"topo"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* part : {"host ", "cpu ", "kernels ", "memory "}) {
    EXPECT_NE(r.out.find(part), std::string::npos) << r.out;
  }
  const ProgramResult as_json = run({"topo", "--json"});
  ASSERT_EQ(as_json.exit_code, 0) << as_json.err;
  const json j = json::parse(as_json.out);
  EXPECT_GT(j["threads"].get<int>(), 0);
  EXPECT_GT(j["memory_bytes"].get<int64_t>(), 0);
  EXPECT_EQ(j["cuda_devices"].empty(), !j["no_cuda_devices"].is_null());
  expect_refused({"topo", "--cpu-workers", "2"}, {"--cpu-workers"});
  expect_refused({"topo", "--save", "no/such/place.cluster"}, {"--save no/such/place.cluster"});
}

TEST_F(Look, TopoSavesWhatPlanAndSimulateRead) {
  const ProgramResult saved = run({"topo", "--save", "here.cluster", "--cpu-workers", "2"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const std::string text = read("here.cluster");
  EXPECT_NE(text.find("# measured: f32 product"), std::string::npos) << text;
  EXPECT_NE(text.find("\nnetwork "), std::string::npos) << text;
  const std::vector<std::string> mesh = {"--parallelism.data_parallel_degree=2"};
  const ProgramResult plan = run({"plan", "job.toml", "--topology", "here.cluster", mesh[0]});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  const ProgramResult simulated =
      run({"simulate", "job.toml", "--topology", "here.cluster", "--json", mesh[0]});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const json step = json::parse(simulated.out);
  EXPECT_EQ(step["device"], "cpu");
  EXPECT_EQ(step["devices"], 2);
  EXPECT_TRUE(step["fits"]);
  EXPECT_GT(step["step_ms"].get<double>(), 0);
}

TEST_F(Look, TopShowsARunThatHasEnded) {
  const ProgramResult trained = run(train("run"));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  // It ends by itself: nothing more will happen.
  const ProgramResult r = run({"top", path("run")});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("ended: done"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("step        6 of 6"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("recoveries  0"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos) << "this is no terminal";
}

TEST_F(Look, TopShowsWorkersOfARunThatGoesOn) {
  const int going = start(
      train("run", {"--workers", "2", "--training.steps=100000", "--optimizer.decay_steps=1000",
                    "--log.interval=100000", "--checkpoint.interval=0"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") > 5; })) << read(".err");
  const ProgramResult r = run_beside({"top", path("run"), "--once"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find(": running"), std::string::npos) << r.out;
  const json state = json::parse(read("run/control/state.json"));
  ASSERT_EQ(state["workers"].size(), 2U);
  for (const json& w : state["workers"]) {
    const std::string pid = std::to_string(w["pid"].get<int64_t>());
    const size_t at = r.out.find(pid);
    ASSERT_NE(at, std::string::npos) << r.out;
    const std::string line = r.out.substr(at, r.out.find('\n', at) - at);
    EXPECT_NE(line.find("iB"), std::string::npos) << line;
    EXPECT_TRUE(line.ends_with("running")) << line;
  }
  kill(going, SIGINT);
  EXPECT_EQ(wait(going).exit_code, 130);
}

TEST_F(Look, TopKnowsARunThatWasKilled) {
  const int going = start(train("run", {"--training.steps=100000", "--optimizer.decay_steps=1000",
                                        "--log.interval=100000", "--checkpoint.interval=0"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") > 5; })) << read(".err");
  kill(going, SIGKILL);
  EXPECT_EQ(wait(going).exit_code, 128 + SIGKILL);
  const ProgramResult r = run({"top", path("run")});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find(": not running\n"), std::string::npos) << r.out;
}

TEST_F(Look, TopTakesRunsAlone) {
  expect_refused({"top", "nowhere"}, {"nowhere", "no run directory"});
  // What could be an address is asked.
  const ProgramResult r = run({"top", "127.0.0.1:1"});
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("127.0.0.1:1 does not answer"), std::string::npos) << r.err;
}

TEST_F(Look, BenchKernelsMeasures) {
  const ProgramResult r = run({"bench", "kernels", "--batch", "1", "--seq-len", "32", "--filter",
                               "add", "--seconds", "0", "--json", "--devices", "cpu:1"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["device"], "cpu:0");
  ASSERT_GE(j["rows"].size(), 3U);
  for (const json& row : j["rows"]) {
    EXPECT_GT(row["us"].get<double>(), 0) << row;
    EXPECT_GT(row["gb_s"].get<double>(), 0) << row;
  }
  const ProgramResult product = run({"bench", "kernels", "--batch", "1", "--seq-len", "32",
                                     "--filter", "up 32", "--seconds", "0.01", "--dtype", "bf16"});
  ASSERT_EQ(product.exit_code, 0) << product.err;
  EXPECT_NE(product.out.find("products and attention in bf16"), std::string::npos) << product.out;
  EXPECT_NE(product.out.find("up 32x768x288 NT"), std::string::npos) << product.out;
  expect_refused({"bench", "kernels", "--filter", "no such kernel"}, {"no such kernel"});
}

}  // namespace
}  // namespace sgactor::tests
