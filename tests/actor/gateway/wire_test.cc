#include "actors/protocol/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace sgactor::actors::wire {
namespace {

Status fault() {
  Origin origin;
  origin.rank = 3;
  origin.actor = "subgraph_actor";
  origin.step = 17;
  origin.generation = 2;
  origin.where = "a.cc:5";
  return Status(Code::kDeviceFault, Scope::kRank, "device 3 is gone", origin);
}

/// One of each kind, with no field at its default.
std::vector<Body> all_bodies() {
  Hello hello{Role::kWorker, "0.1 (ab)", 7, "host a", 4711, 2, 3, {"cpu:1", "cpu:2"}, true};
  LoadPlan load;
  load.job_hash = 5;
  load.job = "[model]\n";
  load.job_name = "tiny";
  load.plan = std::string("\0\1\2plan", 7);
  load.validation_plan = "v";
  load.ranks = {0, 1, 5};
  load.worker = 2;
  load.run_directory = "runs/a";
  load.first_step = 9;
  load.checkpoint = "runs/a/ckpt/step_8";
  load.secret = std::string(32, '\x80');
  load.mirror_root = "runs/a/mirror";
  load.redo_from = 7;
  Routes routes{4, {{2, std::string("\0addr", 5), {0, 2}}, {3, "b", {1}}}};
  StepDone done{1, 2, 17, {1.5F, 0.25F, 0.125F, true}, 99, 4096, 0xFEDCBA9876543210ULL, 12};
  SnapshotWritten written{3, 16, 2, fault(), std::string("\0part", 5), 10, 20, 0.5};
  return {hello,
          Welcome{2, 7},
          Refused{fault()},
          StartWorkers{{"cpu"}, 4},
          WorkerExited{1, 4711, "signal 9"},
          StopJob{"asked"},
          load,
          PlanLoaded{2, "addr", "cpu avx2"},
          routes,
          Shutdown{fault()},
          Failed{fault()},
          Opaque{12, std::string("\0\xFF", 2)},
          BeginStep{17, 3},
          Commit{17, 3},
          BeginValidation{16, 8},
          TakeSnapshot{16, "/dev/shm/m", 3},
          Finish{},
          RankReady{1, 2, 3},
          Vote{1, 2, 3, 17, 0xFEDCBA9876543210ULL, 5, 7, 2.5F, true},
          done,
          ValidationDone{1, 16, 3.25},
          SnapshotEnqueued{1, 16, 2},
          written,
          RankFinished{1, {1000, 2, 3}},
          FaultReport{1, fault(), true},
          Heartbeat{5, 6},
          EndWorker{3, true},
          Resume{3, 16},
          Recheck{1, 4, 17, 3}};
}

std::string bytes_of(const Body& body) {
  Envelope envelope{2, 1, 3, 44, 55, body};
  auto bytes = encode(envelope);
  EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
  return bytes.ok() ? *bytes : "";
}

TEST(WireTest, EveryMessageComesBackAsItWas) {
  const std::vector<Body> bodies = all_bodies();
  ASSERT_EQ(bodies.size(), std::variant_size_v<Body>);
  for (size_t i = 0; i < bodies.size(); ++i) {
    ASSERT_EQ(bodies[i].index(), i);
    const std::string bytes = bytes_of(bodies[i]);
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << name_of(bodies[i]) << ": " << back.status().to_string();
    EXPECT_EQ(back->sender, 2U);
    EXPECT_EQ(back->receiver, 1U);
    EXPECT_EQ(back->generation, 3);
    EXPECT_EQ(back->request, 44U);
    EXPECT_EQ(back->answers, 55U);
    ASSERT_EQ(back->body.index(), i) << name_of(bodies[i]);
    // Every field is in the bytes, so equal bytes mean equal fields.
    const auto again = encode(*back);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, bytes) << name_of(bodies[i]);
  }
}

TEST(WireTest, FieldsKeepTheirValues) {
  const std::vector<Body> bodies = all_bodies();
  const auto load = decode(bytes_of(bodies[6]));
  ASSERT_TRUE(load.ok());
  EXPECT_EQ(std::get<LoadPlan>(load->body).plan, std::string("\0\1\2plan", 7));
  EXPECT_EQ(std::get<LoadPlan>(load->body).ranks, (std::vector<int32_t>{0, 1, 5}));
  const auto vote = decode(bytes_of(bodies[18]));
  ASSERT_TRUE(vote.ok());
  EXPECT_EQ(std::get<Vote>(vote->body).generation, 3);
  EXPECT_EQ(std::get<Vote>(vote->body).incarnation, 2);
  const auto report = decode(bytes_of(bodies[24]));
  ASSERT_TRUE(report.ok());
  const Status status = std::get<FaultReport>(report->body).status;
  EXPECT_EQ(status.to_string(), fault().to_string());
  EXPECT_EQ(status.scope(), Scope::kRank);
  const auto done = decode(bytes_of(bodies[19]));
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(std::get<StepDone>(done->body).numbers.has_loss);
  EXPECT_EQ(std::get<StepDone>(done->body).numbers.loss, 1.5F);
}

TEST(WireTest, CutMessagesAreRefused) {
  for (const Body& body : all_bodies()) {
    const std::string bytes = bytes_of(body);
    for (size_t size = 0; size < bytes.size(); ++size) {
      if (const auto back = decode(std::string_view(bytes).substr(0, size)); back.ok()) {
        ADD_FAILURE() << name_of(body) << " cut to " << size << " of " << bytes.size();
      }
    }
  }
}

TEST(WireTest, MutatedMessagesNeverHarm) {
  std::mt19937_64 random(20240601);
  const std::vector<Body> bodies = all_bodies();
  int64_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = bytes_of(bodies[random() % bodies.size()]);
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto back = decode(bytes);
    if (!back.ok()) continue;
    ++taken;
    // What was taken can be sent on.
    EXPECT_TRUE(encode(*back).ok());
  }
  EXPECT_GT(taken, 0);
}

TEST(WireTest, RandomBytesAreRefused) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(8 * (random() % 64), '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_FALSE(decode(bytes).ok());
  }
}

TEST(WireTest, AnotherProtocolIsNamed) {
  std::string bytes = bytes_of(Finish{});
  // The protocol is the first number of the root's data.
  std::string start("\0\0\0\0\2\0\0\0", 8);
  start[0] = static_cast<char>(kProtocol);
  const size_t at = bytes.find(start);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 9;
  const auto back = decode(bytes);
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.status().code(), Code::kUnsupported);
  EXPECT_NE(back.status().message().find("protocol 9"), std::string::npos);
}

TEST(WireTest, LongStatusIsCut) {
  const Status status = make_status(Code::kInternal, std::string(1 << 20, 'x'));
  const std::string bytes = bytes_of(FaultReport{0, status});
  EXPECT_LT(bytes.size(), 20000U);
}

}  // namespace
}  // namespace sgactor::actors::wire
