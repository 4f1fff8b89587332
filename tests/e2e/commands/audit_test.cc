// `sgactor audit`: a past run is executed again and every bit compared.
#include "tests/e2e/cluster/cluster_program.h"

#include <nlohmann/json.hpp>

#include <cstdlib>

namespace sgactor::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Audit : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    fs::create_directories(path("scratch"));
    setenv("TMPDIR", path("scratch").c_str(), 1);
  }
  void TearDown() override {
    EXPECT_TRUE(fs::is_empty(path("scratch"))) << "an audit has left something behind";
    unsetenv("TMPDIR");
    ClusterTest::TearDown();
  }
  void trained(const std::string& run_dir, const std::vector<std::string>& more = {}) const {
    const ProgramResult r = run(train(run_dir, more));
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  [[nodiscard]] json audited(const std::vector<std::string>& more, int exit_code) const {
    std::vector<std::string> args = {"audit", path("run"), "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult r = run(args);
    EXPECT_EQ(r.exit_code, exit_code) << r.out << r.err;
    return json::parse(r.out, nullptr, false);
  }
  /// Replaces the only occurrence of `from` in a file.
  void replace(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = read(name);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << name << ": " << from;
    write(name, text.replace(at, from.size(), to));
  }
};

TEST_F(Audit, ARunOfTwoRanksAgreesAndIsOnlyRead) {
  trained("run");
  const auto before = snapshot();
  const ProgramResult r = run({"audit", path("run")});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find("6 steps compared: 0 of other loss bits, 0 of other samples; state: 0 of"),
            std::string::npos)
      << r.out;
  EXPECT_NE(r.out.find("equal: every bit"), std::string::npos) << r.out;
  EXPECT_TRUE(snapshot() == before) << "the audit has written into the run";
  const json again = audited({}, 0);
  EXPECT_TRUE(again["equal"]);
  EXPECT_EQ(again["steps"], 6);
  EXPECT_GT(again["tensors"].get<int>(), 10);
  EXPECT_TRUE(again["notes"].empty()) << again;
}

TEST_F(Audit, ARunOfWorkerProcessesAgrees) {
  trained("run", {"--workers", "2", "--parallelism.zero_stage=3"});
  const json r = audited({}, 0);
  EXPECT_TRUE(r["equal"]);
  EXPECT_EQ(r["tensors_of_other_bits"], 0);
}

TEST_F(Audit, AnotherBitIsFoundAndNamed) {
  trained("run");
  const std::string real = loss_bits("run")[3];
  replace("run/metrics.jsonl", real, "00000000");
  const ProgramResult r = run({"audit", path("run")});
  EXPECT_EQ(r.exit_code, 1) << r.out << r.err;
  EXPECT_NE(r.out.find("step 4  loss_bits was 00000000, is " + real), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("1 of other loss bits, 0 of other samples"), std::string::npos) << r.out;
  const json j = audited({}, 1);
  ASSERT_EQ(j["differences"].size(), 1U);
  EXPECT_EQ(j["differences"][0]["step"], 4);
  EXPECT_FALSE(j["equal"]);
  // Steps that are left out are not looked at.
  EXPECT_TRUE(audited({"--steps", "5..6"}, 0)["equal"]);
}

TEST_F(Audit, SamplesAreComparedWhereTheRunHasTheirHashes) {
  trained("run");
  const std::string text = read("run/audit.jsonl");
  const size_t at = text.find("\"step\":3,");
  const size_t hash = text.find("sample_hash\":\"", at) + 14;
  std::string other = text;
  other.replace(hash, 16, "0123456789abcdef");
  write("run/audit.jsonl", other);
  const json r = audited({}, 1);
  EXPECT_EQ(r["steps_of_other_samples"], 1);
  EXPECT_EQ(r["differences"][0]["what"], "sample_hash");
  EXPECT_EQ(r["differences"][0]["was"], "0123456789abcdef");
  // A line that a crash has swallowed is no difference.
  const size_t begin = text.rfind('\n', at) + 1;
  write("run/audit.jsonl", std::string(text).erase(begin, text.find('\n', at) + 1 - begin));
  EXPECT_EQ(audited({}, 0)["steps_of_unknown_samples"], 1);
}

TEST_F(Audit, AnotherStateIsFoundAndItsTensorsNamed) {
  trained("run");
  trained("other", {"--optimizer.weight_decay=0.2"});
  fs::remove_all(path("run/ckpt"));
  fs::copy(path("other/ckpt"), path("run/ckpt"), fs::copy_options::recursive);
  const ProgramResult r = run({"audit", path("run")});
  EXPECT_EQ(r.exit_code, 1) << r.out << r.err;
  EXPECT_NE(r.out.find("0 of other loss bits"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("state after step 6  model.embed_tokens.weight"), std::string::npos)
      << r.out;
}

TEST_F(Audit, ARangeBeginsAfterTheNewestCheckpointBeforeIt) {
  trained("run");
  const json r = audited({"--steps", "6"}, 0);
  EXPECT_EQ(r["from_step"], 4);
  EXPECT_EQ(r["steps"], 1);
  EXPECT_EQ(audited({"--steps", "..3"}, 0)["checkpoint"], nullptr);
  fs::remove_all(path("run/ckpt"));
  const json from_start = audited({"--steps", "6"}, 0);
  EXPECT_EQ(from_start["from_step"], 0);
  EXPECT_EQ(from_start["steps"], 1) << "steps before the range are executed, not compared";
}

TEST_F(Audit, AResumedRunIsExecutedWithTheJobOfEachPart) {
  // The cosine ends with the run, so that the first steps were those of another job.
  trained("run", {"--training.steps=4", "--optimizer.decay_steps=0"});
  trained("run", {"--resume", "--training.steps=6", "--optimizer.decay_steps=0"});
  EXPECT_TRUE(audited({}, 0)["equal"]);
  // Without checkpoints it is the job that is there, with the steps after which the next part
  // began.
  fs::remove_all(path("run/ckpt"));
  EXPECT_TRUE(audited({}, 0)["equal"]);
  // A job that is nowhere to be found is named with the steps that it trained.
  trained("again", {"--training.steps=4"});
  trained("again", {"--resume", "--training.steps=6", "--optimizer.lr=0.02"});
  EXPECT_EQ(run({"audit", path("again")}).exit_code, 0) << "a checkpoint has the first part's job";
  fs::remove_all(path("again/ckpt"));
  const ProgramResult r = run({"audit", path("again")});
  EXPECT_EQ(r.exit_code, 2) << r.out;
  EXPECT_NE(r.err.find("steps 1 to 4 were trained with a job"), std::string::npos) << r.err;
}

TEST_F(Audit, SizesThatWereTunedAreReadFromTheRun) {
  ranks_ = {"--training.micro_batch_size=auto", "--training.steps=30", "--checkpoint.interval=0",
            "--training.global_batch_size=8"};
  trained("run");
  ASSERT_NE(read("run/audit.jsonl").find("\"micro_batch_size\""), std::string::npos);
  EXPECT_TRUE(audited({}, 0)["equal"]);
  // What goes on after that has the size that was last in use, which its job does not say.
  ranks_[1] = "--training.steps=40";
  trained("run", {"--resume", "--optimizer.max_grad_norm=0.5"});
  EXPECT_EQ(audited({}, 0)["steps"], 40);
}

TEST_F(Audit, AnotherDeviceIsSaidUpFront) {
  trained("run");
  const ProgramResult r = run({"audit", path("run"), "--steps", "1", "--devices", "reference"});
  EXPECT_NE(r.out.find("note      the run used cpu:0, this is reference"), std::string::npos)
      << r.out << r.err;
}

TEST_F(Audit, AnInterruptEndsIt) {
  trained("run", {"--training.steps=600", "--log.interval=100", "--checkpoint.interval=0"});
  const int pid = start({"audit", path("run")});
  ASSERT_TRUE(
      wait_for([&] { return read(".out").find("from      the start") != std::string::npos; }));
  kill(pid, SIGINT);
  const ProgramResult r = wait(pid);
  EXPECT_EQ(r.exit_code, 130) << r.out << r.err;
  EXPECT_NE(r.out.find("interrupted"), std::string::npos) << r.out;
}

TEST_F(Audit, WhatIsNoRunIsRefused) {
  expect_refused({"audit", "nowhere"}, {"nowhere", "is no run directory"});
  expect_refused({"audit", "tiny"}, {"tiny", "is no run directory"});
  trained("run");
  for (const char* steps : {"0..2", "3..2", "5..7", "..", "x", "1..2..3"}) {
    expect_refused({"audit", "run", "--steps", steps}, {"--steps", "steps 1 to 6"});
  }
  write("run/metrics.jsonl", read("run/metrics.jsonl") + read("run/metrics.jsonl"));
  expect_refused({"audit", "run"}, {"step 1 has two lines"});
}

}  // namespace
}  // namespace sgactor::tests
