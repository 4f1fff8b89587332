// `sgactor simulate --faults --seed`: what a run on a cluster would lose.
#include "tests/e2e/cluster/cluster_program.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>

namespace sgactor::tests {
namespace {

using nlohmann::json;

const std::string kExamples = std::string(SGA_SOURCE_DIR) + "/apps/examples/";

class SimulateFaults : public ClusterTest {
 protected:
  static std::vector<std::string> llama_8b(std::vector<std::string> more) {
    std::vector<std::string> out = {"simulate",
                                    kExamples + "llama-8b.toml",
                                    "--topology",
                                    kExamples + "clusters/h200x8.cluster",
                                    "--parallelism.data_parallel_degree=4",
                                    "--parallelism.zero_stage=3",
                                    "--training.dtype=bf16"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  static std::vector<std::string> example(const std::string& seed) {
    return llama_8b({"--faults", kExamples + "chaos/simulated.toml", "--seed", seed});
  }
};

TEST_F(SimulateFaults, ExampleSaysWhatIsLost) {
  const ProgramResult text = run(example("7"));
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"step        ", "faults      ", "by a timeline of phases", "kill_worker",
                           "rank 1 on node0:1", "hang_worker", "kill_coordinator",
                           "steps       1000 of 1000, 0 of them to be done again", "goodput     ",
                           "recoveries  ", "protocol    in virtual time on 4 ranks",
                           "0 pieces of work repeated by survivors; state of every rank equal"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  EXPECT_EQ(run(example("7")).out, text.out) << "the same seed, the same bytes";
  EXPECT_NE(run(example("8")).out, text.out);
}

TEST_F(SimulateFaults, FiguresAddUp) {
  std::vector<std::string> command = example("7");
  command.push_back("--json");
  const ProgramResult r = run(command);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json out = json::parse(r.out);
  EXPECT_EQ(out["model"], "timeline");
  EXPECT_EQ(out["seed"], 7);
  EXPECT_EQ(out["steps_done"], 1000);
  EXPECT_EQ(out["protocol"]["outcome"], "equal");
  EXPECT_EQ(out["protocol"]["survivors_reexecuted"], 0);
  EXPECT_TRUE(out["ended"].is_null());
  double lost = out["seconds_for_want_of_workers"];
  for (const json& fault : out["faults"]) lost += fault["lost_ms"].get<double>() / 1e3;
  const double seconds = out["seconds"];
  const double without = out["seconds_without_faults"];
  EXPECT_NEAR(without, out["step_ms"].get<double>(), 1e-6 * without);  // 1000 steps
  EXPECT_NEAR(seconds, without + lost, 1e-6 * seconds);
  EXPECT_NEAR(out["goodput"].get<double>(), without / seconds, 1e-9);
  EXPECT_GT(out["goodput"], 0.5);
  EXPECT_LT(out["goodput"], 1);
  const json& hung = out["faults"][1];
  EXPECT_EQ(hung["fault"], "hang_worker");
  EXPECT_NEAR(hung["detected_ms"].get<double>(), 250, 1e-6);
  EXPECT_GT(hung["recovery_ms"].get<double>(), 250);
}

TEST_F(SimulateFaults, SeedAloneDrawsByADocumentedRate) {
  const ProgramResult r = run(llama_8b({"--seed", "3", "--json"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json out = json::parse(r.out);
  EXPECT_EQ(out["faults_from"], "a device fails once in 50000 hours");
  EXPECT_TRUE(out["faults"].empty()) << "four devices for two hours";
  EXPECT_EQ(out["seconds"], out["seconds_without_faults"]);
  EXPECT_EQ(out["goodput"], 1);
  const ProgramResult plain = run(llama_8b({"--json"}));
  EXPECT_EQ(json::parse(plain.out)["step_ms"], out["step_ms"]);
  EXPECT_FALSE(json::parse(plain.out).contains("goodput"));
}

TEST_F(SimulateFaults, DrawnFaultsComeInOrderAndRecoveriesKeepTheirs) {
  write("drawn.toml",
        "spares = 4\n[[fault]]\nkind = \"kill_worker\"\nrank = 1\nat_step = 900\n"
        "[[fault]]\nkind = \"hang_worker\"\nrank = 2\nat_step = \"recovery\"\n"
        "[random]\ndevice_mtbf_steps = 2400\n");  // eight devices: one in 300 steps
  const ProgramResult r = run(llama_8b({"--faults", path("drawn.toml"), "--seed", "5", "--json"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json faults = json::parse(r.out)["faults"];
  ASSERT_GE(faults.size(), 3U) << r.out;
  EXPECT_LT(faults[0]["step"], 900) << r.out;
  EXPECT_LT(faults[1]["step"], 900) << r.out;  // drawn behind the first, not where that one struck
  for (size_t i = 1; i < faults.size(); ++i) {
    EXPECT_GE(faults[i]["step"], faults[i - 1]["step"]) << r.out;
    if (faults[i]["fault"] == "hang_worker" && faults[i]["step"] == 900) {
      EXPECT_EQ(faults[i - 1]["step"], 900) << r.out;
    }
  }
}

TEST_F(SimulateFaults, LastDeviceGoesAndTheRunWithIt) {
  write("gone.toml",
        "[[fault]]\nkind = \"xid\"\nxid = 54\nrank = 3\nat_step = 10\n"
        "[[fault]]\nkind = \"kill_node\"\nhost = \"node0\"\nat_step = 150\n");
  // No device has room for two ranks; one of twice the memory has.
  const ProgramResult full = run(llama_8b({"--faults", path("gone.toml")}));
  EXPECT_EQ(full.exit_code, 0) << full.err;
  EXPECT_NE(full.out.find("ended       rank 3 on node0:3 is lost, and 2 ranks take "),
            std::string::npos)
      << full.out;
  std::string cluster = "network 4.5e10 1.5e-5\nhost node0 3.6e11 6e-6\n";
  for (int d = 0; d < 4; ++d) cluster += "device h200 282000000000 6.5e14 4.0e12\n";
  write("large.cluster", cluster);
  std::vector<std::string> command = llama_8b({"--faults", path("gone.toml"), "--json"});
  command[3] = path("large.cluster");
  const ProgramResult r = run(command);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json out = json::parse(r.out);
  EXPECT_EQ(out["faults"][0]["workers"], 3);
  EXPECT_NE(out["faults"][0]["action"].get<std::string>().find("fewer workers"), std::string::npos);
  EXPECT_NE(out["ended"].get<std::string>().find("no worker is left"), std::string::npos);
  EXPECT_EQ(out["steps_done"], 150);
  EXPECT_EQ(out["checkpoint"], 100);
  EXPECT_EQ(out["steps_again"], 50);
}

TEST_F(SimulateFaults, BadScenariosNameTheirKey) {
  const auto refused = [&](const std::string& text, const std::string& what) {
    write("bad.toml", text);
    expect_refused(llama_8b({"--faults", path("bad.toml")}), {"bad.toml:" + what});
  };
  const std::string kill = "[[fault]]\nkind = \"kill_worker\"\n";
  refused(kill + "rank = 4\n", "3: rank: expected a number from 0 to 3");
  refused(kill + "at_step = 1000\n", "3: at_step: expected a number from 1 to 999");
  refused("[[fault]]\nkind = \"lose_host\"\nhost = \"node9\"\n",
          "3: host: the cluster has no such");
  refused("spares = 5\n" + kill, "1: spares: 5, and the cluster has 4 devices");
  refused(kill + "when = 3\n", "3: no key \"when\"");
  expect_refused(llama_8b({"--faults", "none.toml"}), {"none.toml"});
  // What only a simulation can do is none of chaos.
  expect_refused({"chaos", kExamples + "llama-tiny.toml", kExamples + "chaos/simulated.toml",
                  "--parallelism.data_parallel_degree=4", "--training.micro_batch_size=2"},
                 {"simulated.toml:", "only for sgactor simulate --faults"});
}

TEST_F(SimulateFaults, ManyDevicesTakeSeconds) {
  write("many.toml", "spares = 8\n[random]\ncount = 20\ndevice_mtbf_hours = 100\n");
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult r =
      run({"simulate", kExamples + "llama-8b.toml", "--topology",
           kExamples + "clusters/h200x192.cluster", "--parallelism.data_parallel_degree=184",
           "--training.global_batch_size=184", "--parallelism.zero_stage=3",
           "--training.dtype=bf16", "--faults", path("many.toml"), "--json", "--no-cache"});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json out = json::parse(r.out);
  EXPECT_TRUE(out["protocol"].is_null()) << "more ranks than the protocol is simulated with";
  EXPECT_GE(out["faults"].size(), 20U);
  EXPECT_GT(out["goodput"], 0);
  EXPECT_LE(out["goodput"], 1);
  EXPECT_LT(seconds, 60) << "a few seconds where nothing else runs";
}

}  // namespace
}  // namespace sgactor::tests
