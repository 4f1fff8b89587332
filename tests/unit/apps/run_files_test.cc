#include "apps/sgactor/cluster_left.h"
#include "apps/sgactor/progress.h"
#include "apps/sgactor/replay_check.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/run_recorder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

class RunFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("sga_run_") + info->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string file(const std::string& name) const { return (dir_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  fs::path dir_;
};

TEST_F(RunFiles, NewRunMustBeAbsentOrEmpty) {
  EXPECT_TRUE(check_new_run(file("absent")).ok());
  EXPECT_TRUE(check_new_run(dir_.string()).ok());
  write("x", "y");
  EXPECT_EQ(check_new_run(dir_.string()).message(),
            "--run-dir " + dir_.string() +
                ": exists and is not empty; add --resume to go on with it, or name another");
  EXPECT_EQ(check_new_run(file("x")).message(),
            "--run-dir " + file("x") + ": expected a directory, there is a file");
}

TEST_F(RunFiles, CreateMakesSubdirectoriesAndNamesWhatFails) {
  ASSERT_TRUE(create_run({file("a/b")}).ok());
  EXPECT_TRUE(fs::is_directory(file("a/b/ckpt")));
  EXPECT_TRUE(fs::is_directory(file("a/b/trace")));
  write("plain", "");
  const Status s = create_run({file("plain/run")});
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_NE(s.message().find(file("plain/run")), std::string::npos) << s.message();
}

TEST_F(RunFiles, DefaultPathIsFree) {
  const fs::path before = fs::current_path();
  fs::current_path(dir_);
  const std::string first = default_run_path("job", 1'000'000'000);
  EXPECT_EQ(first.rfind("runs/job-2001090", 0), 0U) << first;  // local time: 8 or 9 September
  fs::create_directories(first);
  EXPECT_EQ(default_run_path("job", 1'000'000'000), first + "-2");
  fs::current_path(before);
}

TEST_F(RunFiles, TruncateKeepsStepsUpToTheCheckpoint) {
  write("m", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1}\n");
  const auto dropped = truncate_steps(file("m"), 2);
  ASSERT_TRUE(dropped.ok()) << dropped.status().to_string();
  EXPECT_EQ(*dropped, 1);
  EXPECT_EQ(read(file("m")), "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n");
  EXPECT_EQ(*truncate_steps(file("m"), 2), 0);
  EXPECT_EQ(*truncate_steps(file("absent"), 2), 0);
}

TEST_F(RunFiles, TruncateDropsACutLastLine) {
  for (const char* tail : {"{\"step\":2", "{\"step\":2}", "", "\0\0\0"}) {
    write("m", std::string("{\"step\":1}\n") + tail);
    ASSERT_TRUE(truncate_steps(file("m"), 9).ok());
    EXPECT_EQ(read(file("m")), "{\"step\":1}\n") << tail;
  }
}

TEST_F(RunFiles, TruncateRefusesGarbageInTheMiddle) {
  write("m", "{\"step\":1}\ngarbage\n{\"step\":3}\n");
  const auto dropped = truncate_steps(file("m"), 9);
  ASSERT_FALSE(dropped.ok());
  EXPECT_EQ(dropped.status().message(), file("m") + ":2: expected a JSON object with a step");
  EXPECT_EQ(read(file("m")), "{\"step\":1}\ngarbage\n{\"step\":3}\n");
}

TEST_F(RunFiles, MetricsLineHasExactlyTheKeys) {
  actors::StepReport r;
  r.step = 3;
  r.loss = 5.5F;
  r.grad_norm = 1.25F;
  r.lr = 0.5F;
  r.tokens = 2048;
  r.step_ms = 500;
  const auto json = nlohmann::ordered_json::parse(metrics_line(r, 1e9, 1 << 30));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"step", "loss", "loss_bits", "grad_norm", "lr",
                                            "tokens", "tok_s", "step_ms", "tflops", "mfu",
                                            "mem_gib", "overlap", "generation"}));
  EXPECT_EQ(json["loss_bits"], "40b00000");
  EXPECT_EQ(json["tok_s"], 4096.0);
  EXPECT_DOUBLE_EQ(json["tflops"].get<double>(), 4.096);
  EXPECT_EQ(json["mem_gib"], 1.0);
  EXPECT_TRUE(json["mfu"].is_null());
}

TEST_F(RunFiles, MetricsLineSurvivesNan) {
  actors::StepReport r;
  r.loss = std::numeric_limits<float>::quiet_NaN();
  const auto json = nlohmann::json::parse(metrics_line(r, 0, 0));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_EQ(json["loss_bits"], "7fc00000");
}

TEST_F(RunFiles, RecorderAppendsALineAStep) {
  const RunDirectory run{dir_.string()};
  RunRecorder recorder({.run = run, .last_step = 2});
  ASSERT_TRUE(recorder.open().ok());
  actors::StepReport r;
  testing::internal::CaptureStdout();
  for (r.step = 1; r.step <= 2; ++r.step) {
    r.tokens = 10;
    r.loss = static_cast<float>(r.step);
    recorder.on_step(r);
  }
  recorder.on_validation(2, 1.5);
  recorder.on_checkpoint(2, "ckpt/\"x\"", {});
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 3);
  EXPECT_EQ(recorder.num_tokens(), 20);
  EXPECT_EQ(recorder.last_validation(), 1.5);
  EXPECT_TRUE(recorder.status().ok());
  int64_t lines = 0;
  std::ifstream metrics(run.metrics());
  for (std::string line; std::getline(metrics, line);)
    EXPECT_EQ(nlohmann::json::parse(line)["step"], ++lines);
  EXPECT_EQ(lines, 2);
  std::ifstream audit(run.audit());
  for (std::string line; std::getline(audit, line);)
    EXPECT_TRUE(nlohmann::json::parse(line).contains("who")) << line;
}

TEST(Progress, LinesAlign) {
  ProgressFacts f;
  f.last_step = 1000;
  f.step = 1;
  f.loss = 10.123456;
  f.lr = 3e-3;
  f.tokens_per_second = 950;
  f.memory_bytes = 1 << 20;
  f.seconds_left = 3700;
  const std::string first = progress_line(f, false);
  f.step = 1000;
  f.loss = 1.5;
  f.tokens_per_second = 123456;
  f.memory_bytes = int64_t{200} << 30;
  const std::string last = progress_line(f, false);
  EXPECT_EQ(first.size(), last.size()) << first << "\n" << last;
  EXPECT_NE(first.find("step    1/1000"), std::string::npos) << first;
  EXPECT_NE(first.find("1h 01m"), std::string::npos) << first;
  EXPECT_NE(last.find("[####################]"), std::string::npos) << last;
  EXPECT_EQ(first.find('\x1b'), std::string::npos);
  EXPECT_NE(progress_line(f, true).find('\x1b'), std::string::npos);
}

TEST(Progress, TimeLeftFollowsTheSteps) {
  TimeLeft left;
  EXPECT_EQ(left.step_done(100, 10), 0);  // nothing known yet
  EXPECT_DOUBLE_EQ(left.step_done(102, 9), 18);
  EXPECT_DOUBLE_EQ(left.step_done(104, 8), 16);
  double guess = 0;
  for (int i = 1; i <= 200; ++i) guess = left.step_done(104 + i, 1);
  EXPECT_NEAR(guess, 1, 0.01);  // steps became twice as fast
}

TEST_F(RunFiles, WhoTakesOverKnowsTheDevicesThatWereGivenUp) {
  const RunDirectory run{dir_.string()};
  const auto authority = actors::TlsAuthority::create();
  ASSERT_TRUE(authority.ok());
  const auto identity = (*authority)->issue_member();
  ASSERT_TRUE(identity.ok());
  LeftFacts facts;
  facts.next_index = 7;
  facts.closed = {{"a", "cuda:1"}, {"b", "cuda:0"}};
  facts.server = {{"127.0.0.1:1"}, *identity};
  ASSERT_TRUE(actors::write_token(file("control/token"), facts.server).ok());
  ASSERT_TRUE(write_left(run, facts).ok());
  facts.closed.insert({"b", "cuda:3"});
  ASSERT_TRUE(write_left_facts(run, facts).ok());
  const auto left = read_left(run);
  ASSERT_TRUE(left.ok() && left->has_value());
  EXPECT_EQ((*left)->facts.next_index, 7);
  EXPECT_EQ((*left)->facts.closed, facts.closed);
}

TEST(ReplayCheck, StepTimesAreTakenOnceReplayedOrNot) {
  ReplayCheck check(nullptr, {}, "", 0, nullptr);
  actors::StepReport report;
  for (report.step = 1; report.step <= 3; ++report.step) {
    report.step_ms = static_cast<double>(10 * report.step);
    check.on_step(report);
  }
  EXPECT_EQ(check.take_step_times(), (std::vector<double>{10, 20, 30}));
  report.step = 3;
  report.step_ms = 40;
  check.on_step(report);
  EXPECT_EQ(check.take_step_times(), std::vector<double>{40});
  EXPECT_TRUE(check.take_step_times().empty());
}

}  // namespace
}  // namespace sgactor::apps
