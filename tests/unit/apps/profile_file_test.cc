// What a trace says of a plan's times, and what a worker's answer is.
#include "apps/sgactor/profile_file.h"

#include "actors/runtime/trace.h"
#include "apps/sgactor/profile_request.h"
#include "graph/base/log.h"
#include "graph/compiler/pipeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using graph::LaunchKind;

class ProfileFile : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("sgactor-profile-" + std::to_string(::getpid()));
    fs::create_directories(dir_);
    graph::CompileOptions options;
    options.mesh.pp = 2;
    options.micro_batch_size = 1;
    options.seq_len = 16;
    auto compiled = graph::compile_training(*graph::llama_preset("llama-tiny"), options);
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    plan_ = std::move(compiled->plan);
  }
  void TearDown() override { fs::remove_all(dir_); }

  [[nodiscard]] const graph::Launch& first(int program, LaunchKind kind) const {
    for (const graph::Launch& l : plan_.programs[static_cast<size_t>(program)].launches) {
      if (l.kind == kind && (kind != LaunchKind::kSend || l.phase == graph::Phase::kForward))
        return l;
    }
    ADD_FAILURE() << "no such launch";
    return plan_.programs[0].launches[0];
  }
  std::string write(const actors::Tracer& tracer, int32_t rank) const {
    const std::string file = (dir_ / ("rank" + std::to_string(rank) + ".json.gz")).string();
    const Status s = tracer.write(file, rank);
    EXPECT_TRUE(s.ok()) << s.to_string();
    return file;
  }

  fs::path dir_;
  graph::Plan plan_;
};

TEST_F(ProfileFile, ValidationOfTheSameNameDoesNotCount) {
  actors::Tracer tracer;
  const int32_t lane = tracer.add_track("rank 0 lane 0", true);
  const int32_t validation = tracer.add_track("rank 0 lane 0 validation");
  tracer.enable(true);
  const graph::Launch& l = first(0, LaunchKind::kSubgraph);
  for (int64_t step = 1; step <= 3; ++step) {
    tracer.slice(lane, l.name, 0, 5000, step, 0);
    for (int64_t i = 0; i < 9; ++i) tracer.slice(validation, l.name, 0, 777, step, 0);
  }
  const auto profile = profile_of_traces(plan_, {write(tracer, 0)}, /*warm=*/true);
  ASSERT_TRUE(profile.ok()) << profile.status().to_string();
  ASSERT_EQ(profile->subgraphs.size(), 1U);
  EXPECT_EQ(profile->subgraphs.begin()->second, (graph::Profile::Time{5000, 3}));
  // Without warmth the first step is cold.
  const auto cold = profile_of_traces(plan_, {write(tracer, 0)}, /*warm=*/false);
  ASSERT_TRUE(cold.ok());
  EXPECT_EQ(cold->subgraphs.begin()->second, (graph::Profile::Time{5000, 2}));
}

/// A receive is posted long before its message comes: the end that waited less says how long the
/// message took.
TEST_F(ProfileFile, AMessageTakesWhatTheEndThatWaitedLessSays) {
  const graph::Launch& send = first(0, LaunchKind::kSend);
  const graph::Launch* recv = nullptr;
  for (const graph::Launch& l : plan_.programs[1].launches) {
    const bool mine = l.communication.key == send.communication.key;
    if (l.kind == LaunchKind::kRecv && mine) recv = &l;
  }
  ASSERT_NE(recv, nullptr);
  actors::Tracer sender;
  actors::Tracer receiver;
  const int32_t out = sender.add_track("rank 0 lane 1", true);
  const int32_t in = receiver.add_track("rank 1 lane 1", true);
  sender.enable(true);
  receiver.enable(true);
  for (int64_t step = 1; step <= 3; ++step) {
    sender.slice(out, send.name, 0, 40000, step, 0);
    receiver.slice(in, recv->name, 0, 90000000, step, 0);
  }
  const auto profile = profile_of_traces(plan_, {write(sender, 0), write(receiver, 1)}, true);
  ASSERT_TRUE(profile.ok()) << profile.status().to_string();
  ASSERT_EQ(profile->collectives.size(), 2U);
  for (const auto& [key, time] : profile->collectives) {
    EXPECT_TRUE(key.kind == LaunchKind::kSend || key.kind == LaunchKind::kRecv);
    EXPECT_EQ(time, (graph::Profile::Time{40000, 3}));
    EXPECT_EQ(key.members, 2);
  }
}

TEST(TracerRecording, TakesWholeStepsOfLanesAndNothingElse) {
  actors::Tracer tracer;
  const int32_t lane = tracer.add_track("rank 0 lane 0", true);
  const int32_t actor = tracer.add_track("pool");
  std::string json;
  tracer.slice(lane, "before", 0, 1, 6, 0);
  tracer.record_steps(2);
  EXPECT_FALSE(tracer.on()) << "actors are not traced for a profile";
  EXPECT_FALSE(tracer.take_recorded(0, false, &json));
  tracer.slice(lane, "cut", 0, 1, 7, 0);  // this step had begun
  tracer.slice(lane, "first", 0, 1, 8, 0);
  tracer.slice(actor, "message", 0, 1, 8, 0);
  tracer.slice(lane, "second", 0, 1, 9, 0);
  EXPECT_FALSE(tracer.take_recorded(0, false, &json));
  tracer.slice(lane, "behind", 0, 1, 10, 0);
  ASSERT_TRUE(tracer.take_recorded(0, false, &json));
  for (const char* there : {"\"first\"", "\"second\""})
    EXPECT_NE(json.find(there), std::string::npos) << there;
  for (const char* gone : {"\"before\"", "\"cut\"", "\"message\"", "\"behind\""})
    EXPECT_EQ(json.find(gone), std::string::npos) << gone;
  EXPECT_FALSE(tracer.take_recorded(0, true, &json)) << "once";
  EXPECT_EQ(tracer.num_events(), 0U) << "the run's own trace is as it was";
}

TEST(ProfileRequest, IsWholeOnceEverybodyHasAnswered) {
  EXPECT_EQ(ProfileRequest::parse("{\"profile\": 8}"), 8);
  EXPECT_FALSE(ProfileRequest::parse("{\"profile\": 0}"));
  EXPECT_FALSE(ProfileRequest::parse("{\"profile\": 1001}"));
  EXPECT_FALSE(ProfileRequest::parse("{\"profile\": \"8\"}"));
  EXPECT_FALSE(ProfileRequest::parse("{\"resize\": 2}"));
  EXPECT_FALSE(ProfileRequest::parse("no json"));
  ProfileRequest request;
  request.begin({0, 1, 2});
  EXPECT_FALSE(request.answer(7, {})) << "was not asked";
  EXPECT_FALSE(request.answer(0, {}));
  EXPECT_FALSE(request.forget(1)) << "one is still waited for";
  EXPECT_TRUE(request.answer(2, {}));
  EXPECT_FALSE(request.answer(2, {})) << "a second time";
  const ProfileAnswer told{"a file", "cpu", "a \"CPU\"", ""};
  const auto back = parse_answer(encode_answer(told));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->file, told.file);
  EXPECT_EQ(back->device, told.device);
  EXPECT_FALSE(parse_answer("{\"file\": 3}").ok());
}

TEST_F(ProfileFile, TimesOfAnotherDeviceAreLeftOut) {
  JobSpec job;
  job.profile.use = (dir_ / "times.json").string();
  const auto write_of = [&](const std::string& backend, const std::string& device) {
    graph::Profile profile;
    profile.backend = backend;
    profile.device = device;
    profile.subgraphs[1] = {1000, 1};
    std::ofstream(job.profile.use) << graph::write_profile(profile);
  };
  kernels::DeviceInfo device;
  device.backend = "cpu";
  device.description = "A Model, avx2, 2 threads, a library";
  const auto is_used = [&] {
    job.profile.foreign = false;
    leave_out_foreign_profile(job, device);
    const auto loaded = load_profile(job);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_EQ(loaded->profile == nullptr, job.profile.foreign);
    EXPECT_EQ(loaded->content_hash.empty(), job.profile.foreign);
    return loaded->profile != nullptr;
  };
  write_of("cpu", device.description);
  EXPECT_TRUE(is_used());
  write_of("cpu", "A Model, avx2, 1 thread, a library");
  EXPECT_TRUE(is_used()) << "workers share a machine's threads";
  write_of("cpu", "B Model, avx2, 2 threads, a library");
  EXPECT_FALSE(is_used());
  write_of("cuda", device.description);
  EXPECT_FALSE(is_used());
  EXPECT_EQ(log::num_warnings(), 2);
  log::reset_warnings();
  std::ofstream(job.profile.use) << "no profile";
  leave_out_foreign_profile(job, device);
  job.profile.foreign = false;
  EXPECT_FALSE(load_profile(job).ok());
}

TEST_F(ProfileFile, SizesThatTheRunDidNotHaveAreTakenOver) {
  const graph::Launch& launch = first(0, LaunchKind::kSubgraph);
  actors::Tracer tracer;
  const int32_t lane = tracer.add_track("rank 0 lane 0", true);
  tracer.enable(true);
  tracer.slice(lane, launch.name, 0, 5000, 1, 0);
  fs::create_directories(dir_ / "trace");
  ASSERT_TRUE(tracer.write((dir_ / "trace" / "rank0_trace.json.gz").string(), 0).ok());
  JobSpec job;
  job.profile.use = (dir_ / "old.json").string();
  job.profile.record = (dir_ / "new.json").string();
  graph::Profile old;
  old.collectives[{LaunchKind::kAllReduce, 4096, 2}] = {30000, 3};
  old.subgraphs[7] = {1, 1};
  std::ofstream(job.profile.use) << graph::write_profile(old);
  const Status s = record_profile(job, plan_, RunDirectory{dir_.string()}, {});
  ASSERT_TRUE(s.ok()) << s.to_string();
  std::ostringstream text;
  text << std::ifstream(job.profile.record).rdbuf();
  const auto recorded = graph::parse_profile(text.str());
  ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
  EXPECT_EQ(recorded->collectives, old.collectives);
  EXPECT_EQ(recorded->subgraphs.size(), 1U);
  EXPECT_FALSE(recorded->subgraphs.contains(7));
}

}  // namespace
}  // namespace sgactor::apps
