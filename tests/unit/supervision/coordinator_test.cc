#include "supervision/recovery/coordinator_core.h"

#include <gtest/gtest.h>

#include <optional>

namespace sgactor::supervision {
namespace {

constexpr int64_t kMs = 1000;

/// Two ranks on workers 0 (node 0) and 1 (node 1); worker 2 (node 1) is a spare.
std::vector<Member> members() { return {{0, 0, 0, 0}, {1, 1, 0, 0}, {2, 1, 1, 0}}; }

class CoordinatorTest : public testing::Test {
 protected:
  CoordinatorTest() {
    options_.last_step = 3;
    world_ = *initial_world(2, {0, 1}, members(), {});
    text_ = format_entry({0, difference({}, world_)});
    restart(0);
  }
  void restart(int64_t now_us) {
    const auto journal = replay_journal(text_);
    ASSERT_TRUE(journal.ok()) << journal.status().to_string();
    core_.emplace(options_, *journal, now_us);
  }
  /// Makes everything decided durable; false if there was nothing.
  bool write(int64_t now_us) {
    bool any = false;
    while (auto entry = core_->take_write(now_us)) {
      text_ += format_entry(*entry);
      core_->on_durable(entry->number, now_us);
      any = true;
    }
    return any;
  }
  void vote_all(int64_t step) {
    const World& w = core_->decided();
    for (size_t r = 0; r < w.ranks.size(); ++r) {
      core_->on_vote({static_cast<RankId>(r), w.ranks[r].incarnation, w.generation, step});
    }
  }
  CoordinatorOptions options_;
  World world_;
  std::string text_;
  std::optional<CoordinatorCore> core_;
};

TEST_F(CoordinatorTest, ACommitIsDurableBeforeItIsTold) {
  EXPECT_TRUE(core_->take_announcement(0));
  vote_all(1);
  EXPECT_EQ(core_->decided().committed, 1);
  EXPECT_EQ(core_->announced()->committed, 0);
  EXPECT_FALSE(core_->take_announcement(1));
  const auto entry = core_->take_write(1);
  ASSERT_TRUE(entry);
  EXPECT_FALSE(core_->take_write(1));  // one at a time
  core_->on_durable(entry->number, 2);
  EXPECT_EQ(core_->announced()->committed, 1);
  EXPECT_TRUE(core_->take_announcement(2));
  EXPECT_FALSE(core_->take_announcement(3));
  EXPECT_TRUE(core_->take_announcement(2 + options_.announce_interval_us));  // and again
  EXPECT_EQ(core_->announced()->ranks[0].source, core_->announced()->ranks[0].mirror);
}

TEST_F(CoordinatorTest, AFullDiskDelaysTheCommit) {
  vote_all(1);
  const auto entry = core_->take_write(1);
  ASSERT_TRUE(entry);
  core_->on_write_failed(entry->number, 1);
  EXPECT_FALSE(core_->take_write(2));
  const auto again = core_->take_write(1 + options_.write_retry_us);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->number, entry->number);
  EXPECT_EQ(format_entry(*again), format_entry(*entry));
}

TEST_F(CoordinatorTest, AnExitBecomesAMembershipAndTheDeadVoteIsForgotten) {
  vote_all(1);
  write(0);
  core_->on_vote({0, 1, 1, 2});
  core_->on_vote({1, 1, 1, 1});                                // of the committed step
  core_->on_node_heartbeat({1, 1, {{2, 1, 1, 0}}}, 10 * kMs);  // worker 1 is not in the list
  const World& w = core_->decided();
  EXPECT_EQ(w.generation, 2);
  EXPECT_EQ(w.ranks[1].worker, 2);
  EXPECT_EQ(w.ranks[1].incarnation, 2);
  EXPECT_EQ(core_->announced()->generation, 1);
  core_->on_vote({1, 1, 1, 2});  // the dead one's, late
  EXPECT_EQ(core_->decided().committed, 1);
  ASSERT_TRUE(write(11 * kMs));
  EXPECT_EQ(core_->announced()->generation, 2);
  core_->on_vote({1, 2, 2, 2});
  EXPECT_EQ(core_->decided().committed, 1);  // rank 0's vote was of the old generation
  core_->on_vote({0, 1, 2, 2});
  EXPECT_EQ(core_->decided().committed, 2);
  ASSERT_EQ(core_->recoveries().size(), 1U);
  const RecoveryNote& note = core_->recoveries()[0];
  EXPECT_EQ(note.workers, std::vector<WorkerId>{1});
  EXPECT_EQ(note.ranks, std::vector<RankId>{1});
  EXPECT_EQ(note.detected_us, 10 * kMs);
  EXPECT_EQ(note.fenced_us, 11 * kMs);
}

TEST_F(CoordinatorTest, SilenceIsSuspectedAfterThreeBeats) {
  for (int64_t t = 1; t <= 5; ++t) {
    core_->on_heartbeat({0, t}, t * 100 * kMs);
    core_->on_heartbeat({2, t}, t * 100 * kMs);
    core_->on_node_heartbeat({0, t, {{0, 0, 0, 0}}}, t * 100 * kMs);
    core_->on_node_heartbeat({1, t, {{1, 1, 0, 0}, {2, 1, 1, 0}}}, t * 100 * kMs);
    core_->tick(t * 100 * kMs);
    EXPECT_EQ(core_->decided().generation, t <= 3 ? 1 : 2) << t;
  }
  EXPECT_EQ(core_->decided().find(1), nullptr);
  EXPECT_EQ(core_->recoveries()[0].fault, FaultKind::kHang);
}

TEST_F(CoordinatorTest, ALostNodeTakesItsWorkersAlong) {
  for (int64_t t = 1; t <= 4; ++t) {
    core_->on_heartbeat({0, t}, t * 100 * kMs);
    core_->on_node_heartbeat({0, t, {{0, 0, 0, 0}}}, t * 100 * kMs);
    core_->tick(t * 100 * kMs);
  }
  const World& w = core_->decided();
  EXPECT_EQ(w.nodes, std::vector<NodeId>{0});
  EXPECT_EQ(w.num_hosted(0), 2);  // shrunk
  // It comes back with fresh workers under a new id: at the next commit the ranks spread again.
  core_->on_node_heartbeat({2, 1, {{3, 2, 0, 0}}}, 500 * kMs);
  EXPECT_TRUE(core_->decided().has_node(2));
  EXPECT_EQ(core_->decided().num_hosted(3), 0);
  vote_all(1);
  EXPECT_EQ(core_->decided().committed, 1);
  EXPECT_EQ(core_->decided().num_hosted(3), 1);
  const auto entry = core_->take_write(500 * kMs);
  ASSERT_TRUE(entry);
}

TEST_F(CoordinatorTest, ARestartKnowsAllThatWasTold) {
  vote_all(1);
  write(0);
  core_->on_node_heartbeat({1, 1, {{2, 1, 1, 0}}}, 10 * kMs);
  write(10 * kMs);
  const World told = *core_->announced();
  // Decided, being written, told to nobody: whether it is there or not is the disk's affair.
  vote_all(2);
  const auto entry = core_->take_write(11 * kMs);
  ASSERT_TRUE(entry);
  text_ += format_entry(*entry).substr(0, 9);
  restart(20 * kMs);
  EXPECT_EQ(core_->decided(), told);
  EXPECT_EQ(*core_->announced(), told);
}

TEST_F(CoordinatorTest, WithoutRoomItWaitsAndThenStops) {
  options_.placement.max_ranks_per_worker = 1;
  restart(0);
  core_->on_node_heartbeat({1, 1, {}}, 10 * kMs);
  EXPECT_EQ(core_->decided().generation, 1);
  EXPECT_TRUE(core_->failure().ok());
  core_->on_node_heartbeat({1, 2, {{7, 1, 0, 0}}}, 20 * kMs);
  EXPECT_EQ(core_->decided().ranks[1].worker, 7);
  core_->on_node_heartbeat({1, 3, {}}, 30 * kMs);
  for (int64_t t = 1; t <= 700; ++t) {
    core_->on_heartbeat({0, t}, t * 100 * kMs);
    core_->on_node_heartbeat({0, t, {{0, 0, 0, 0}}}, t * 100 * kMs);
    core_->on_node_heartbeat({1, 3 + t, {}}, t * 100 * kMs);
    core_->tick(t * 100 * kMs);
  }
  EXPECT_EQ(core_->failure().code(), Code::kOverloaded);
}

TEST_F(CoordinatorTest, AStormStopsTheJobAndADeviceThatFailsAgainIsLeftOut) {
  options_.storms = {60'000'000, 4, 2};
  restart(0);
  WorkerId next = 3;
  for (int64_t i = 0; i < 3; ++i) {
    const WorkerId fresh = next++;
    core_->on_node_heartbeat({1, 2 * i + 1, {{1, 1, 0, 0}, {fresh, 1, 1, 0}}}, i);
    core_->on_node_heartbeat({1, 2 * i + 2, {{1, 1, 0, 0}}}, i);
  }
  core_->on_node_heartbeat({1, 10, {{1, 1, 0, 0}, {99, 1, 1, 0}}}, 5);
  EXPECT_EQ(core_->decided().find(99), nullptr);
  EXPECT_TRUE(core_->failure().ok());
  core_->on_worker_fault(1, FaultKind::kDeviceFault, Action::kResetDevice, 6);
  EXPECT_EQ(core_->decided().find(1), nullptr);
  core_->on_node_heartbeat({1, 11, {{1, 1, 0, 0}, {100, 1, 2, 0}}}, 7);
  core_->on_node_heartbeat({1, 12, {}}, 8);
  EXPECT_EQ(core_->failure().code(), Code::kOverloaded);
}

TEST_F(CoordinatorTest, LostStateEndsTheJobAndNamesTheRank) {
  core_->on_lost({1, 1, 7});  // of another generation
  EXPECT_TRUE(core_->failure().ok());
  core_->on_lost({1, 1, 1});
  EXPECT_EQ(core_->lost_rank(), 1);
  EXPECT_NE(core_->failure().message().find("rank 1"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::supervision
