#include "tests/fault/process/fault_program.h"

#include <chrono>

namespace sgactor::tests {
namespace {

/// What a run says of a worker that does not move.
class HangReport : public FaultTest {
 protected:
  [[nodiscard]] nlohmann::json report(const std::string& run_dir) const {
    return nlohmann::json::parse(read(run_dir + "/hang_report.json"), nullptr, false);
  }
  /// The entry of a worker process in control/state.json.
  [[nodiscard]] nlohmann::json worker_of(const std::string& run_dir, int pid) const {
    const nlohmann::json all = state(run_dir);
    for (const nlohmann::json& worker : all.at("workers")) {
      if (worker.at("pid") == pid) return worker;
    }
    return nullptr;
  }
  static nlohmann::json rank_of(const nlohmann::json& report, int rank) {
    for (const nlohmann::json& r : report.at("ranks")) {
      if (r.at("rank") == rank) return r;
    }
    return nullptr;
  }
};

TEST_F(HangReport, NamesTheStoppedWorkerAndWhoWaitsForIt) {
  // Many small micro-batches: most of a step lies before its collectives.
  const std::vector<std::string> long_steps = {"--training.micro_batch_size=1",
                                               "--training.global_batch_size=32"};
  const std::vector<std::string> bits = undisturbed(long_steps);
  nlohmann::json hang;
  // A worker that is stopped outside of that part keeps nobody in a collective: another run. Not
  // behind step 10, when copies of the state are taken.
  for (int i = 0; i < 6 && (!hang.is_object() || hang["stuck"].empty()); ++i) {
    const std::string name = "run" + std::to_string(i);
    std::vector<std::string> more = long_steps;
    more.insert(more.end(), {"--workers", "2", "--spares", "1"});
    const int pid = start(train(name, more));
    ASSERT_TRUE(is_past(name, 13)) << read(".err");
    const int victim = active(name).back();
    const nlohmann::json worker = worker_of(name, victim);
    ASSERT_TRUE(worker.is_object());
    kill(victim, SIGSTOP);
    expect_whole(pid, name, bits);
    hang = report(name);
    ASSERT_TRUE(hang.is_object()) << read(".err");
    EXPECT_EQ(hang["fault"], "silence");
    EXPECT_EQ(hang["culprit_ranks"], worker["ranks"]);
    EXPECT_NE(hang["culprit"].get<std::string>().find("pid " + std::to_string(victim)),
              std::string::npos)
        << hang["culprit"];
    EXPECT_GE(hang["still_ms"], 300);
    EXPECT_LE(hang["reported_ms"], 300) << "three heartbeats";
    EXPECT_EQ(hang["generation"], 1);
    const nlohmann::json lost = rank_of(hang, 1);
    EXPECT_EQ(lost["heard"], false);
    EXPECT_EQ(lost["pid"], victim);
    EXPECT_EQ(lost["worker"], worker["index"]);
    EXPECT_GE(lost["silent_ms"], 300);
    const nlohmann::json there = rank_of(hang, 0);
    EXPECT_EQ(there["heard"], true);
    ASSERT_FALSE(there["actors"].empty());
    EXPECT_FALSE(there["actors"][0]["message"].get<std::string>().empty());
  }
  // Whoever is heard has come to a collective of the open step, which the other has not joined.
  ASSERT_FALSE(hang["stuck"].empty()) << hang.dump(1);
  const nlohmann::json& stuck = hang["stuck"][0];
  EXPECT_EQ(stuck["joined"], nlohmann::json::array({0}));
  EXPECT_EQ(stuck["missing"], nlohmann::json::array({1}));
  EXPECT_EQ(stuck["members"], nlohmann::json::array({0, 1}));
  EXPECT_EQ(stuck["step"].get<int>(), hang["step"].get<int>() + 1);
  EXPECT_GE(stuck["sequence"].get<int>(), 1);
  EXPECT_FALSE(stuck["channel"].get<std::string>().empty());
  EXPECT_EQ(stuck["kind"], "all_reduce") << stuck;
  const std::string text = read(".err");
  EXPECT_NE(text.find("waiting for rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce number"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1 has not joined"), std::string::npos) << text;
  EXPECT_NE(text.find("its worker does not answer"), std::string::npos) << text;
}

TEST_F(HangReport, AnActorThatNeverReturnsIsFoundByWhatDoesNotHappen) {
  setenv("SGACTOR_INJECT", "1", 1);
  const std::vector<std::string> bits = undisturbed();
  const int pid =
      start(train("run", {"--workers", "2", "--spares", "1", "--resilience.progress_floor=1"}));
  unsetenv("SGACTOR_INJECT");
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const nlohmann::json worker = worker_of("run", active("run").front());
  request("run",
          "{\"inject\":\"stall_worker\",\"worker\":" + worker["index"].dump() + ",\"value\":0}\n");
  ASSERT_TRUE(wait_for([&] { return exists("run/hang_report.json"); })) << read(".err");
  const ProgramResult status = run({"ctl", path("run"), "status"});
  EXPECT_NE(status.out.find("hang        at step"), std::string::npos) << status.out << status.err;
  expect_whole(pid, "run", bits);
  const nlohmann::json hang = report("run");
  ASSERT_TRUE(hang.is_object()) << read(".err");
  EXPECT_EQ(hang["fault"], "no progress");
  EXPECT_EQ(hang["culprit_ranks"], worker["ranks"]) << hang.dump(1);
  EXPECT_EQ(rank_of(hang, worker["ranks"][0])["heard"], true) << "it answers and beats";
  EXPECT_GE(hang["still_ms"], 1000);
  EXPECT_LE(hang["reported_ms"], 300);
  const auto lines = recoveries("run");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["fault"], "hang");
  EXPECT_NE(lines[0].dump().find("\"survivors_reexecuted\":0"), std::string::npos) << lines[0];
}

TEST_F(HangReport, ARunInOneProcessNamesTheActorAndEnds) {
  setenv("SGACTOR_INJECT", "1", 1);
  const int pid = start(train("run", {"--resilience.progress_floor=1", "--training.steps=100000"}));
  unsetenv("SGACTOR_INJECT");
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 10; })) << read(".err");
  std::filesystem::create_directories(path("run/control"));
  request("run", "{\"inject\":\"stall_worker\",\"worker\":0,\"value\":0}\n");
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.err.find("the run failed: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("no progress for "), std::string::npos) << result.err;
  const nlohmann::json hang = report("run");
  ASSERT_TRUE(hang.is_object()) << result.err;
  EXPECT_EQ(hang["fault"], "no progress");
  EXPECT_GE(hang["still_ms"], 1000);
  EXPECT_GE(hang["step"], 10);
  const nlohmann::json rank = rank_of(hang, 0);
  ASSERT_FALSE(rank["actors"].empty()) << hang.dump(1);
  EXPECT_GE(rank["actors"][0]["ago_ms"], 1000) << "the newest message of any actor";
  EXPECT_FALSE(rank["actors"][0]["message"].get<std::string>().empty());
  const nlohmann::json summary = nlohmann::json::parse(read("run/report.json"), nullptr, false);
  EXPECT_NE(summary.dump().find("no progress"), std::string::npos) << summary.dump();
}

TEST_F(HangReport, ARunWithoutResilienceEndsAndNamesWhoWasSilent) {
  const int pid =
      start(train("run", {"--workers", "2", "--resilience.mode=off", "--training.steps=100000"}));
  ASSERT_TRUE(is_past("run", 10)) << read(".err");
  const int victim = active("run").back();
  kill(victim, SIGSTOP);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("pid " + std::to_string(victim)), std::string::npos) << result.err;
  const nlohmann::json hang = report("run");
  ASSERT_TRUE(hang.is_object()) << result.err;
  EXPECT_EQ(hang["fault"], "silence");
  EXPECT_EQ(hang["culprit_ranks"], nlohmann::json::array({1}));
  EXPECT_GE(hang["still_ms"], 5000) << "nobody takes over, so it is given time";
}

}  // namespace
}  // namespace sgactor::tests
