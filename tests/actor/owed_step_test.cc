// A step is committed and a rank is lost before it has told of it: its loss came with its vote.
#include "actors/protocol/status_error.h"
#include "actors/runtime/coordinator.h"

#include <caf/actor_system_config.hpp>
#include <caf/all.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace sgactor::actors {
namespace {

constexpr auto kLong = std::chrono::seconds(20);

/// Set by actors, waited for by the test.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

struct Script {
  int32_t rank = 0;
  int64_t life = 1;      ///< incarnation, and generation in which it begins
  bool dies = false;     ///< on hearing of the first commit
  Flag* told = nullptr;  ///< set when it has told of a step, or has died
};

float loss_of(int32_t rank) { return 0.5F + static_cast<float>(rank); }

/// A worker of one rank without a device.
WorkerActor::behavior_type scripted(WorkerActor::pointer self, const CoordinatorActor& coordinator,
                                    const Script& script) {
  const auto tell = [=](int64_t step) {
    StepDone done;
    done.rank = script.rank;
    done.incarnation = script.life;
    done.step = step;
    done.numbers = {loss_of(script.rank), 2.0F, 0.125F, true};
    done.tokens = 64;
    done.sample_hash = 99;
    self->send(coordinator, done);
    if (script.told != nullptr) script.told->set();
  };
  auto last = std::make_shared<int64_t>(0);
  self->send(coordinator, RankReady{script.rank, script.life, script.life});
  return {
      [=](const BeginStep& m) {
        Vote vote{script.rank, script.life, m.generation, m.step};
        vote.loss = loss_of(script.rank);
        vote.has_loss = true;
        self->send(coordinator, vote);
      },
      [=](const Commit& m) {
        if (script.dies) {
          if (script.told != nullptr) script.told->set();
          self->quit(to_caf(make_status(Code::kDisconnected, "killed", Scope::kRank)));
          return;
        }
        *last = m.step;
        tell(m.step);
      },
      [](const BeginValidation&) {},
      [](const TakeSnapshot&) {},
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
      [=](const Rejoined& m) {
        self->send(coordinator, RankReady{script.rank, script.life, m.generation});
      },
      [=](const Resume& m) {
        if (*last == m.committed && *last > 0) tell(*last);
      },
      [](const Recheck&) {},
      [](const GradientChecked&) {},
  };
}

class Reports final : public TrainingObserver {
 public:
  void on_step(const StepReport& report) override { steps.push_back(report); }
  void on_validation(int64_t /*step*/, double /*loss*/) override {}
  void on_checkpoint(int64_t /*step*/, const std::string& /*path*/,
                     const transport::WriteStats& /*stats*/) override {}
  std::vector<StepReport> steps;
};

/// Two data-parallel ranks, of which rank 1 dies on hearing that step 1 is committed.
class OwedStep : public testing::Test {
 protected:
  OwedStep() : inline_(create_inline_service()) {
    host_ = std::make_shared<CoordinatorHost>();
    host_->policy.last_step = 2;
    host_->placements = {{0, 0, 0, 0}, {0, 1, 0, 0}};
    host_->umpires = {0, 1};
    host_->replicas = true;
    host_->journal = create_memory_journal();
    host_->services = {inline_.get(), inline_.get(), inline_.get(), inline_.get()};
    host_->shared = std::make_shared<RunShared>();
    host_->observer = &reports_;
    host_->on_fenced = [this](int64_t generation, int64_t committed) {
      fenced_generation_ = generation;
      fenced_committed_ = committed;
      fenced_.set();
    };
    host_->on_finished = [this](const RunOutcome& outcome) {
      outcome_ = outcome;
      finished_.set();
    };
    host_->workers.push_back([this](caf::local_actor* parent, const CoordinatorActor& c) {
      survivor_ = spawn(parent, c, {0, 1, false, &survivor_told_});
      return survivor_;
    });
    host_->workers.push_back([this](caf::local_actor* parent, const CoordinatorActor& c) {
      return spawn(parent, c, {1, 1, true, &died_});
    });
  }
  static WorkerActor spawn(caf::local_actor* parent, const CoordinatorActor& coordinator,
                           const Script& script) {
    return parent->spawn<caf::linked + caf::monitored>(scripted, coordinator, script);
  }

  std::unique_ptr<BlockingService> inline_;
  std::shared_ptr<CoordinatorHost> host_;
  Reports reports_;
  WorkerActor survivor_;
  Flag survivor_told_, died_, fenced_, finished_;
  int64_t fenced_generation_ = 0;
  int64_t fenced_committed_ = 0;
  RunOutcome outcome_;
  caf::actor_system_config config_;
  caf::actor_system system_{config_};
};

TEST_F(OwedStep, IsReportedOnceSomebodyHasTakenOver) {
  const CoordinatorActor coordinator = spawn_coordinator(system_, host_);
  ASSERT_TRUE(died_.wait());
  ASSERT_TRUE(survivor_told_.wait());
  caf::anon_send(coordinator, Fence{2, {1}});
  ASSERT_TRUE(fenced_.wait());
  EXPECT_EQ(fenced_generation_, 2);
  EXPECT_EQ(fenced_committed_, 1);
  caf::anon_send(coordinator, Adopt{[](caf::local_actor* parent, const CoordinatorActor& c) {
                   return spawn(parent, c, {1, 2, false, nullptr});
                 }});
  caf::anon_send(survivor_, Rejoined{2});
  ASSERT_TRUE(finished_.wait());
  EXPECT_TRUE(outcome_.status.ok()) << outcome_.status.to_string();
  ASSERT_EQ(reports_.steps.size(), 2U);
  for (const StepReport& report : reports_.steps) {
    EXPECT_EQ(report.loss, loss_of(0) + loss_of(1)) << report.step;
    EXPECT_EQ(report.grad_norm, 2.0F);
    EXPECT_EQ(report.tokens, 64);
    EXPECT_EQ(report.sample_hash, 99U);
  }
  EXPECT_FALSE(outcome_.owed);
}

TEST_F(OwedStep, IsToldWithTheEndOfTheAttempt) {
  const CoordinatorActor coordinator = spawn_coordinator(system_, host_);
  ASSERT_TRUE(died_.wait());
  ASSERT_TRUE(survivor_told_.wait());
  caf::anon_send(coordinator,
                 FaultReport{0, make_status(Code::kDisconnected, "no worker is free")});
  ASSERT_TRUE(finished_.wait());
  EXPECT_FALSE(outcome_.status.ok());
  EXPECT_TRUE(reports_.steps.empty());
  EXPECT_EQ(outcome_.last_step, 0);
  EXPECT_EQ(outcome_.committed, 1);
  ASSERT_TRUE(outcome_.owed);
  EXPECT_TRUE(outcome_.owed_whole);
  EXPECT_EQ(outcome_.owed->step, 1);
  EXPECT_EQ(outcome_.owed->loss, loss_of(0) + loss_of(1));
  EXPECT_EQ(outcome_.owed->lr, 0.125F);
}

}  // namespace
}  // namespace sgactor::actors
