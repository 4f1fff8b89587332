// A coordinator that has taken a run over asks for a checkpoint of a step of which the one before
// had asked for a copy elsewhere: parts of that one that come late are none of the checkpoint's.
#include "actors/runtime/coordinator.h"

#include <caf/actor_system_config.hpp>
#include <caf/all.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

namespace sgactor::actors {
namespace {

constexpr int64_t kBefore = 3;  // generation in which the coordinator before has asked
constexpr int64_t kNow = 5;
constexpr int64_t kStep = 2;

struct Script {
  int32_t rank = 0;
  std::string checkpoints;
  std::string mirror;
  Status late;  // what became of the copy
};

/// What a rank adds to a checkpoint below `root`: of other bytes in each.
std::string write(const std::string& root, const Script& script) {
  const bool copy = root == script.mirror;
  const std::vector<float> values(64, (copy ? 9.5F : 1.5F) + static_cast<float>(script.rank));
  const TensorType type{DType::kF32, Shape{64}};
  const auto part = transport::write_part(root, kStep,
                                          {{"rank" + std::to_string(script.rank), type,
                                            std::nullopt, std::as_bytes(std::span(values)), ""}},
                                          {.writer = std::to_string(script.rank)});
  EXPECT_TRUE(part.ok()) << part.status().to_string();
  return part.ok() ? part->part : "";
}

/// A worker of one rank without a device, whose writer was at the copy still.
WorkerActor::behavior_type scripted(WorkerActor::pointer self, const CoordinatorActor& coordinator,
                                    const Script& script) {
  const auto written = [=](int64_t taken, const Status& status, std::string part) {
    SnapshotWritten m;
    m.rank = script.rank;
    m.step = kStep;
    m.taken = taken;
    m.status = status;
    m.part = std::move(part);
    self->send(coordinator, m);
  };
  self->send(coordinator, RankReady{script.rank, 1, kNow});
  return {
      [=](const BeginStep& m) {
        self->send(coordinator, Vote{script.rank, 1, m.generation, m.step});
      },
      [=](const Commit& m) {
        StepDone done;
        done.rank = script.rank;
        done.incarnation = 1;
        done.step = m.step;
        self->send(coordinator, done);
      },
      [](const BeginValidation&) {},
      [=](const TakeSnapshot& m) {
        EXPECT_EQ(m.generation, kNow);
        EXPECT_EQ(m.step, kStep);
        written(kBefore, script.late, script.late.ok() ? write(script.mirror, script) : "");
        self->send(coordinator, SnapshotEnqueued{script.rank, m.step, m.generation});
        written(m.generation, {}, write(script.checkpoints, script));
      },
      [](const SnapshotEnqueued&) {},
      [=](const Finish&) {
        self->send(coordinator, RankFinished{script.rank, {}});
      },
      [](const LaneToken&) {},
      [](const WorkComplete&) {},
      [](const StepPrepared&) {},
      [](const NumbersRead&) {},
      [](const InputsKept&) {},
      [](const PoolReport&) {},
      [](const Rejoined&) {},
      [](const Resume&) {},
      [](const Recheck&) {},
      [](const GradientChecked&) {},
  };
}

class Checkpoints final : public TrainingObserver {
 public:
  void on_step(const StepReport& /*report*/) override {}
  void on_validation(int64_t /*step*/, double /*loss*/) override {}
  void on_checkpoint(int64_t step, const std::string& path,
                     const transport::WriteStats& /*stats*/) override {
    steps.push_back(step);
    paths.push_back(path);
  }
  std::vector<int64_t> steps;
  std::vector<std::string> paths;
};

class SnapshotTaken : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/sga_snapshot_taken_" + std::to_string(::getpid());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  /// The run to its end behind step 1, two ranks.
  RunOutcome run(const Status& late) {
    const auto service = create_inline_service();
    const auto host = std::make_shared<CoordinatorHost>();
    host->policy.last_step = kStep;
    host->policy.can_checkpoint = true;
    host->placements = {{0, 0, 0, 0}, {0, 1, 0, 0}};
    host->umpires = {0, 1};
    host->generation = kNow;
    host->incarnations = {1, 1};
    host->taken_over = TakenOver{.committed = kStep - 1};
    host->checkpoints.root = root_ + "/ckpt";
    host->journal = create_memory_journal();
    host->services = {service.get(), service.get(), service.get(), service.get()};
    host->shared = std::make_shared<RunShared>();
    host->observer = &seen_;
    std::promise<RunOutcome> promise;
    auto outcome = promise.get_future();
    host->on_finished = [&promise](const RunOutcome& o) { promise.set_value(o); };
    for (int32_t rank = 0; rank < 2; ++rank) {
      const Script script{rank, host->checkpoints.root, root_ + "/mirror", late};
      host->workers.push_back([script](caf::local_actor* parent, const CoordinatorActor& c) {
        return parent->spawn<caf::linked + caf::monitored>(scripted, c, script);
      });
    }
    caf::actor_system_config config;
    caf::actor_system system{config};
    spawn_coordinator(system, host);
    if (outcome.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      ADD_FAILURE() << "the run did not end";
      std::_Exit(1);
    }
    return outcome.get();
  }

  std::string root_;
  Checkpoints seen_;
};

TEST_F(SnapshotTaken, ALatePartOfAnotherDirectoryIsNotBelieved) {
  const RunOutcome outcome = run({});
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  ASSERT_EQ(seen_.steps, std::vector<int64_t>{kStep});
  const Status whole = transport::verify_checkpoint(seen_.paths[0]);
  EXPECT_TRUE(whole.ok()) << whole.to_string();
}

TEST_F(SnapshotTaken, ALateFailureOfAnotherDirectoryEndsNothing) {
  const RunOutcome outcome = run(internal_error("the copy's memory is full"));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(seen_.steps, std::vector<int64_t>{kStep});
}

}  // namespace
}  // namespace sgactor::actors
