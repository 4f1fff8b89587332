// The actors of a run under CAF's testing scheduler: one thread, one message at a time, the next
// actor drawn at random. Whatever the interleaving, the numbers are the same.
#include "actors/runtime/training_system.h"
#include "graph/base/hash.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/detail/test_actor_clock.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <optional>
#include <set>

namespace sgactor::actors {
namespace {

using testing_support::bits;
using testing_support::FaultyBackend;
using testing_support::grad_norms;
using testing_support::losses;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

class SimConfig : public caf::actor_system_config {
 public:
  SimConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// Runs an assembly to its end on this thread.
class Simulation {
 public:
  /// `transport` may be null: nothing communicates.
  Simulation(RunAssembly& assembly, uint64_t seed, bool repeat_messages,
             transport::ManualProgress* transport)
      : system_(config_),
        scheduler_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())),
        random_(seed),
        repeat_messages_(repeat_messages),
        transport_(transport) {
    assembly.host()->on_finished = [this](const RunOutcome& o) { outcome = o; };
    const CoordinatorActor coordinator = spawn_coordinator(system_, assembly.host());
    while (step()) ++num_events;
    stood_still = !outcome.has_value();
    if (stood_still) {
      caf::anon_send_exit(coordinator, caf::exit_reason::kill);
      scheduler_.run();
    }
    assembly.abort(make_status(Code::kCancelled, "the simulation has ended"));
    if (transport_ != nullptr) transport_->run_until_idle();
    scheduler_.run();
    assembly.close();
  }

  std::optional<RunOutcome> outcome;
  bool stood_still = false;
  int64_t num_events = 0;
  uint64_t event_hash = 0;  ///< which actor handled which message, in order
  int64_t num_repeated = 0;

 private:
  uint64_t draw(uint64_t n) {
    random_ = mix64(random_, 1);
    return random_ % n;
  }

  /// One message of one ready actor, or one task of the transport.
  bool step() {
    auto& jobs = scheduler_.jobs;
    if (transport_ != nullptr && (jobs.empty() || draw(2) == 0) && transport_->run_one()) {
      event_hash = mix64(event_hash, 2);
      return true;
    }
    if (jobs.empty()) return false;
    std::swap(jobs[0], jobs[draw(jobs.size())]);
    auto* actor = dynamic_cast<caf::scheduled_actor*>(jobs[0]);
    if (actor != nullptr) {
      caf::mailbox_element* next = actor->mailbox().peek();
      event_hash = mix64(event_hash, actor->id());
      if (next != nullptr) {
        event_hash = mix64(event_hash, hash64(next->content().stringify()));
        if (repeat_messages_) maybe_repeat(*actor, *next);
      }
    }
    return scheduler_.try_run_once();
  }

  /// What a sender may send again after a fault comes again here and there.
  void maybe_repeat(caf::scheduled_actor& actor, caf::mailbox_element& element) {
    const auto& content = element.content();
    const bool repeatable =
        content.match_elements<HandleReady>() || content.match_elements<Vote>() ||
        content.match_elements<Commit>() || content.match_elements<BeginStep>() ||
        content.match_elements<StepDone>() || content.match_elements<RankReady>();
    if (!repeatable || draw(3) != 0) return;
    ++num_repeated;
    caf::anon_send(caf::actor_cast<caf::actor>(&actor), element.copy_content_to_message());
  }

  SimConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& scheduler_;
  uint64_t random_;
  bool repeat_messages_;
  transport::ManualProgress* transport_;
};

struct RunResult {
  RunOutcome outcome;
  uint64_t state_hash = 0;
  uint64_t event_hash = 0;
  int64_t num_events = 0;
  int64_t num_repeated = 0;
  std::vector<StepReport> steps;
  std::vector<std::pair<int64_t, double>> validations;
};

class InterleavingTest : public testing::Test {
 protected:
  void SetUp() override {
    TrainingRig::Options options;
    options.num_micro_batches = 3;
    options.validation = true;
    create_rig(options);
    spec_.last_step = 4;
    spec_.validation_interval = 2;
    spec_.validation_batches = 2;
  }

  void create_rig(const TrainingRig::Options& options) {
    auto rig = TrainingRig::create(options);
    ASSERT_TRUE(rig.ok()) << rig.status().to_string();
    rig_ = std::move(*rig);
  }

  Result<RunResult> run(uint64_t seed, bool repeat_messages = false) {
    const auto service = create_inline_service();
    const Services services{service.get(), service.get(), service.get(), service.get()};
    RecordingObserver observer;
    TrainingInputs inputs = rig_->inputs(&observer);
    if (backend_ != nullptr) inputs.backend = backend_;
    SGA_ASSIGN(const auto assembly,
               RunAssembly::create(spec_, inputs, services, create_memory_journal()));
    Simulation simulation(*assembly, seed, repeat_messages, rig_->progress.get());
    if (simulation.stood_still) return internal_error("the run came to a standstill");
    RunResult result;
    result.outcome = *simulation.outcome;
    result.event_hash = simulation.event_hash;
    result.num_events = simulation.num_events;
    result.num_repeated = simulation.num_repeated;
    result.steps = observer.steps;
    result.validations = observer.validations;
    for (const RankSetup& rank : assembly->ranks()) {
      for (const TensorPlace& t : rank.training.context->state) {
        result.state_hash =
            mix64(result.state_hash, hash64(std::span(t.address, static_cast<size_t>(t.bytes))));
      }
    }
    return result;
  }

  std::unique_ptr<TrainingRig> rig_;
  TrainingSpec spec_;
  kernels::Backend* backend_ = nullptr;  ///< in place of the rig's
};

TEST_F(InterleavingTest, EveryInterleavingGivesTheSameState) {
  const auto expected = rig_->run_without_actors(spec_.last_step);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  std::set<uint64_t> states, orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto result = run(seed);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    ASSERT_TRUE(result->outcome.status.ok()) << result->outcome.status.to_string();
    EXPECT_EQ(result->outcome.last_step, spec_.last_step);
    EXPECT_EQ(bits(losses(result->steps)), bits(expected->losses));
    EXPECT_EQ(bits(grad_norms(result->steps)), bits(expected->grad_norms));
    EXPECT_EQ(result->validations.size(), 2U);
    states.insert(result->state_hash);
    orders.insert(result->event_hash);
  }
  EXPECT_EQ(states.size(), 1U);
  EXPECT_EQ(orders.size(), 20U);  // the orders did differ
}

struct Layout {
  graph::MeshShape mesh;
  int32_t zero_stage;
  int32_t num_micro_batches;
};

/// Several ranks and lanes in one process: whatever comes first, also on the wire.
TEST_F(InterleavingTest, EveryInterleavingOfAMeshGivesTheSameState) {
  for (const Layout& l : {Layout{{1, 2, 1}, 0, 2}, Layout{{1, 2, 1}, 3, 2}, Layout{{2, 1, 1}, 0, 3},
                          Layout{{2, 2, 1}, 1, 2}}) {
    std::set<uint64_t> states, orders;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      TrainingRig::Options options;
      options.mesh = l.mesh;
      options.zero_stage = l.zero_stage;
      options.num_micro_batches = l.num_micro_batches;
      options.manual_progress = true;
      create_rig(options);
      const auto result = run(seed);
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      ASSERT_TRUE(result->outcome.status.ok()) << result->outcome.status.to_string();
      EXPECT_EQ(result->outcome.last_step, spec_.last_step);
      for (size_t r = 0; r < rig_->plan.ranks.size(); ++r) {
        const auto program = static_cast<size_t>(rig_->plan.ranks[r].program);
        EXPECT_EQ(result->outcome.pools[r].high_water_bytes,
                  rig_->plan.programs[program].arena_bytes);
      }
      states.insert(result->state_hash);
      orders.insert(result->event_hash);
    }
    EXPECT_EQ(states.size(), 1U);
    EXPECT_EQ(orders.size(), 6U);
  }
}

TEST_F(InterleavingTest, ASeedReplaysExactly) {
  const auto first = run(3);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(run(4).ok());
  const auto again = run(3);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first->event_hash, again->event_hash);
  EXPECT_EQ(first->num_events, again->num_events);
}

TEST_F(InterleavingTest, WhatIsSentAgainChangesNothing) {
  const auto plain = run(1);
  ASSERT_TRUE(plain.ok());
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto result = run(seed, true);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    ASSERT_TRUE(result->outcome.status.ok()) << result->outcome.status.to_string();
    EXPECT_GT(result->num_repeated, 20);
    EXPECT_EQ(result->state_hash, plain->state_hash);
    EXPECT_EQ(result->steps.size(), plain->steps.size());
  }
}

TEST_F(InterleavingTest, PoolReachesThePlanAndAllLeasesComeBack) {
  const auto result = run(5);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->outcome.pools.size(), 1U);
  EXPECT_EQ(result->outcome.pools[0].high_water_bytes, rig_->plan.programs[0].arena_bytes);
}

/// Holds jobs until they are let go.
class HeldService : public BlockingService {
 public:
  void submit(Work work, Done done) override { jobs.push_back({std::move(work), std::move(done)}); }
  void run_one() {
    const auto [work, done] = std::move(jobs.front());
    jobs.pop_front();
    done(work());
  }
  std::deque<std::pair<Work, Done>> jobs;
};

/// Steps go on while a checkpoint is on its way to disk; the next one waits for it, and the run for
/// the last.
TEST_F(InterleavingTest, WritingACheckpointHoldsNoStepBack) {
  const std::string root = testing::TempDir() + "/sga_held/ckpt";
  std::filesystem::remove_all(root);
  spec_.last_step = 6;
  spec_.checkpoint_interval = 4;
  spec_.checkpoint_root = root;
  spec_.validation_interval = 0;
  const auto service = create_inline_service();
  HeldService storage;
  RecordingObserver observer;
  const Services services{service.get(), service.get(), &storage, service.get()};
  const auto assembly =
      RunAssembly::create(spec_, rig_->inputs(&observer), services, create_memory_journal());
  ASSERT_TRUE(assembly.ok()) << assembly.status().to_string();
  SimConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  std::optional<RunOutcome> outcome;
  (*assembly)->host()->on_finished = [&](const RunOutcome& o) { outcome = o; };
  const CoordinatorActor coordinator = spawn_coordinator(system, (*assembly)->host());
  scheduler.run();
  EXPECT_EQ(observer.steps.size(), 6U);  // steps 5 and 6 ran meanwhile
  EXPECT_TRUE(observer.checkpoints.empty());
  EXPECT_FALSE(outcome);
  const auto finish_checkpoint = [&] {  // its chunks, then its commit
    for (int job = 0; job < 2; ++job) {
      ASSERT_EQ(storage.jobs.size(), 1U);
      storage.run_one();
      scheduler.run();
    }
  };
  finish_checkpoint();
  ASSERT_EQ(observer.checkpoints.size(), 1U);
  EXPECT_EQ(observer.checkpoints[0].first, 4);
  EXPECT_FALSE(outcome);
  finish_checkpoint();  // the final one, copied out only now
  EXPECT_EQ(observer.checkpoints.size(), 2U);
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->status.ok()) << outcome->status.to_string();
  (*assembly)->close();
}

TEST_F(InterleavingTest, AFaultAtAnyLaunchEndsTheRunWithItsStatus) {
  const auto num_launches = static_cast<int64_t>(rig_->plan.programs[0].lanes[0].order.size());
  for (int64_t at = 1; at <= num_launches + 1; at += 3) {
    FaultyBackend faulty(*rig_->backend, at);
    backend_ = &faulty;
    const auto result = run(static_cast<uint64_t>(at));
    backend_ = nullptr;
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_EQ(result->outcome.status.code(), Code::kDeviceFault) << at;
    EXPECT_EQ(result->outcome.last_step, at <= num_launches ? 0 : 1);
  }
}

/// An actor that is sent what no interface of it has fails loudly.
TEST_F(InterleavingTest, AnUnexpectedMessageEndsTheRun) {
  const auto service = create_inline_service();
  const Services services{service.get(), service.get(), service.get(), service.get()};
  const auto assembly =
      RunAssembly::create(spec_, rig_->inputs(nullptr), services, create_memory_journal());
  ASSERT_TRUE(assembly.ok());
  SimConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  std::optional<RunOutcome> outcome;
  (*assembly)->host()->on_finished = [&](const RunOutcome& o) { outcome = o; };
  const CoordinatorActor coordinator = spawn_coordinator(system, (*assembly)->host());
  scheduler.run_once();
  caf::anon_send(caf::actor_cast<caf::actor>(coordinator), std::string("hello"));
  scheduler.run();
  (*assembly)->close();
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status.code(), Code::kInternal);
  EXPECT_NE(outcome->status.message().find("unexpected message"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::actors
