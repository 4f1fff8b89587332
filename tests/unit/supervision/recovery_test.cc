#include "supervision/recovery/mirror_core.h"
#include "supervision/recovery/rank_core.h"
#include "supervision/recovery/replay_log.h"

#include <gtest/gtest.h>

namespace sgactor::supervision {
namespace {

constexpr int64_t kMs = 1000;

template <class T>
std::vector<T> of_kind(const Outbox& out) {
  std::vector<T> found;
  for (const Envelope& e : out) {
    if (const auto* m = std::get_if<T>(&e.message)) found.push_back(*m);
  }
  return found;
}

LogicalKey key(int64_t step, RankId from, RankId to, int32_t mb = 0) {
  return {step, 1, mb, 0, from, to};
}

// --- replay log ---

TEST(ReplayLog, KeepsWhatIsAcknowledgedUntilCommit) {
  ReplayLog log(100, {});
  EXPECT_TRUE(*log.post(key(1, 0, 1), Retain::kResult, {7, 10}, 0));
  EXPECT_FALSE(*log.post(key(1, 0, 1), Retain::kResult, {8, 10}, 0));  // the same key
  EXPECT_TRUE(*log.post(key(2, 0, 1), Retain::kInput, {9, 10}, 0));
  log.on_ack(key(1, 0, 1));
  EXPECT_EQ(log.size(), 2U);
  EXPECT_EQ(log.num_unacked(), 1U);
  log.commit(1);
  EXPECT_EQ(log.size(), 1U);
  EXPECT_EQ(log.bytes(), 10);
  EXPECT_EQ(log.high_water_bytes(), 20);
}

TEST(ReplayLog, SendsAgainWithGrowingGapsUntilAcknowledged) {
  ReplayLog log(100, {4 * kMs, 16 * kMs});
  ASSERT_TRUE(log.post(key(1, 0, 1), Retain::kResult, {7, 1}, 0).ok());
  std::vector<int64_t> sent;
  for (int64_t t = 0; t < 60 * kMs; t += kMs) {
    log.take_due(t, [&](const ReplayLog::Due& due) {
      EXPECT_EQ(due.payload.word, 7U);
      sent.push_back(t / kMs);
    });
  }
  EXPECT_EQ(sent, (std::vector<int64_t>{4, 12, 28, 44}));
  log.on_ack(key(1, 0, 1));
  log.take_due(1000 * kMs, [&](const ReplayLog::Due&) { FAIL(); });
  EXPECT_EQ(log.next_due_us(), ReplayLog::kNever);
  log.unack(2, 2000 * kMs);  // somebody else's new life
  EXPECT_EQ(log.num_unacked(), 0U);
  log.unack(1, 2000 * kMs);
  EXPECT_EQ(log.num_unacked(), 1U);
  EXPECT_EQ(log.next_due_us(), 2000 * kMs);
}

TEST(ReplayLog, TheBudgetIsThePlansAndShardsCostNothing) {
  ReplayLog log(10, {});
  EXPECT_TRUE(log.post(key(1, 0, 1, 0), Retain::kRegather, {7, 1000}, 0).ok());
  EXPECT_TRUE(log.post(key(1, 0, 1, 1), Retain::kInput, {7, 10}, 0).ok());
  const auto over = log.post(key(1, 0, 1, 2), Retain::kInput, {7, 1}, 0);
  EXPECT_EQ(over.status().code(), Code::kOutOfMemory);
  EXPECT_EQ(log.size(), 2U);
}

// --- mirror ---

WorldRef world_of(int64_t generation, int64_t committed, std::vector<RankPlace> ranks) {
  World w;
  w.generation = generation;
  w.committed = committed;
  w.nodes = {0, 1, 2};
  w.workers = {{0, 0, 0, 0}, {1, 1, 0, 0}, {2, 2, 0, 0}};
  w.ranks = std::move(ranks);
  return std::make_shared<const World>(std::move(w));
}
/// Rank 0 on worker 0, mirrored on node 1.
WorldRef one_rank(int64_t generation, int64_t committed, int64_t incarnation = 1) {
  return world_of(generation, committed, {{0, incarnation, 1, 1}});
}

TEST(MirrorCore, AWholeStateGoesOnlyForANewerWholeOne) {
  MirrorCore mirror(1);
  Outbox out;
  mirror.on_world(one_rank(1, 0));
  mirror.on_put_state({0, 1, 1, 0, 0, 2, {10, 1}}, out);
  EXPECT_FALSE(mirror.holds(0, 0));
  mirror.on_put_state({0, 1, 1, 0, 1, 2, {11, 1}}, out);
  EXPECT_TRUE(mirror.holds(0, 0));
  mirror.on_put_inputs({0, 1, 1, 1, {20, 1}}, out);
  mirror.on_put_inputs({0, 1, 1, 2, {21, 1}}, out);
  EXPECT_EQ(of_kind<MirrorAck>(out).size(), 4U);
  mirror.on_put_state({0, 1, 1, 2, 0, 2, {12, 1}}, out);  // S(2), half
  EXPECT_EQ(mirror.whole_step(0), 0);
  EXPECT_TRUE(mirror.holds(0, 2));
  out.clear();
  mirror.on_fetch({0, 2, 1, 1, 2}, out);
  const auto reply = of_kind<Fetched>(out).at(0);
  EXPECT_TRUE(reply.found);
  EXPECT_EQ(reply.state_step, 0);
  EXPECT_EQ(reply.state, (State{{10, 1}, {11, 1}}));
  EXPECT_EQ(reply.inputs, (std::vector<Payload>{{20, 1}}));  // exactly S(1), not the newest
  EXPECT_EQ(out[0].to, worker_address(2));
  mirror.on_put_state({0, 2, 1, 2, 1, 2, {13, 1}}, out);
  EXPECT_EQ(mirror.whole_step(0), 2);
  EXPECT_FALSE(mirror.holds(0, 1));
  EXPECT_FALSE(mirror.holds(0, 3));
  EXPECT_EQ(mirror.bytes(), 2);
}

TEST(MirrorCore, FencesEarlierLivesAndOtherGenerations) {
  MirrorCore mirror(1);
  Outbox out;
  mirror.on_put_inputs({0, 1, 1, 1, {20, 1}}, out);  // no world known yet
  mirror.on_world(one_rank(2, 0));
  mirror.on_put_inputs({0, 1, 1, 1, {20, 1}}, out);  // an old generation
  mirror.on_put_inputs({5, 1, 2, 1, {20, 1}}, out);  // no such rank
  EXPECT_TRUE(out.empty());
  mirror.on_fetch({0, 2, 2, 0, 0}, out);
  EXPECT_FALSE(of_kind<Fetched>(out).at(0).found);
  out.clear();
  mirror.on_put_inputs({0, 1, 2, 1, {20, 1}}, out);  // the life before the one that fetched
  EXPECT_TRUE(out.empty());
  mirror.on_put_inputs({0, 2, 2, 1, {20, 1}}, out);
  EXPECT_EQ(out.size(), 1U);
}

TEST(MirrorCore, ForgetsWhatItNeitherMirrorsNorServes) {
  MirrorCore mirror(1);
  Outbox out;
  mirror.on_world(one_rank(1, 0));
  mirror.on_put_state({0, 1, 1, 0, 0, 1, {10, 1}}, out);
  mirror.on_world(world_of(2, 0, {{0, 1, 2, 1}}));  // node 2 mirrors now; node 1 is the source
  EXPECT_TRUE(mirror.holds(0, 0));
  mirror.on_world(world_of(1, 9, {{0, 1, 2, 2}}));  // an older generation
  EXPECT_TRUE(mirror.holds(0, 0));
  mirror.on_world(world_of(2, 1, {{0, 1, 2, 2}}));
  EXPECT_FALSE(mirror.holds(0, 0));
}

TEST(MirrorClient, HoldsNeedsAWholeStateAndEveryInputSince) {
  MirrorClient client(0, 1, {}, {});
  Outbox out;
  EXPECT_TRUE(client.holds(1));  // no mirror: nobody to wait for
  client.retarget(1);
  client.put_state(0, {{1, 1}, {2, 1}}, 0);
  client.put_inputs(1, {3, 1}, 0);
  client.take_due(0, 1, out);
  EXPECT_EQ(of_kind<PutState>(out).size(), 2U);
  EXPECT_EQ(of_kind<PutInputs>(out).size(), 1U);
  client.on_ack({0, 1, 1, 1, 1, kNone});
  EXPECT_FALSE(client.holds(1));
  client.on_ack({0, 1, 1, 1, 0, 0});
  EXPECT_FALSE(client.holds(1));
  client.on_ack({0, 1, 1, 1, 0, 1});
  EXPECT_TRUE(client.holds(1));
  client.put_inputs(2, {4, 1}, 0);
  EXPECT_FALSE(client.holds(2));
  client.on_ack({0, 1, 1, 1, 2, kNone});
  EXPECT_TRUE(client.holds(2));
  client.retarget(2);  // the old mirror is gone, and all it had
  EXPECT_FALSE(client.holds(2));
}

// --- ranks ---

/// Two ranks on workers 0 and 1, mirrored on node 2.
std::vector<RankPlace> two(int64_t incarnation_of_1 = 1) {
  return {{0, 1, 2, 2}, {incarnation_of_1 == 1 ? 1 : 2, incarnation_of_1, 2, 2}};
}

class RankCoreTest : public testing::Test {
 protected:
  RankCoreTest() : core_(options(), world_of(1, 0, two()), 0) {
    core_.start({{100, 1}}, {101, 1}, 0, out_);
  }
  static RankOptions options() {
    RankOptions o;
    o.worker = 0;
    o.state_interval = 2;
    return o;
  }
  /// The mirror has all that was put.
  void mirror_acks(int64_t now_us) {
    const Outbox puts = std::exchange(out_, {});
    for (const PutState& p : of_kind<PutState>(puts)) {
      core_.on_mirror_ack({0, 1, p.generation, 2, p.step, p.chunk}, now_us, out_);
    }
    for (const PutInputs& p : of_kind<PutInputs>(puts)) {
      core_.on_mirror_ack({0, 1, p.generation, 2, p.step, kNone}, now_us, out_);
    }
  }
  Outbox out_;
  RankCore core_;
};

TEST_F(RankCoreTest, VotesOnlyWhenItsMirrorHoldsTheInputs) {
  EXPECT_EQ(of_kind<PutState>(out_).size(), 1U);
  ASSERT_TRUE(core_.inputs_ready({50, 1}, 10, out_).ok());
  EXPECT_EQ(core_.phase(), RankCore::Phase::kVoting);
  EXPECT_TRUE(of_kind<Vote>(out_).empty());
  mirror_acks(20);
  const auto votes = of_kind<Vote>(out_);
  ASSERT_EQ(votes.size(), 1U);
  EXPECT_EQ(votes[0].step, 1);
  EXPECT_EQ(votes[0].generation, 1);
  // Level-triggered: again until the commit is heard.
  out_.clear();
  core_.tick(20 + options().vote_interval_us, out_);
  EXPECT_EQ(of_kind<Vote>(out_).size(), 1U);
}

TEST_F(RankCoreTest, UpdatesOnCommitAndNotBefore) {
  ASSERT_TRUE(core_.post(key(1, 0, 1), Retain::kResult, {7, 1}, 0, out_).ok());
  core_.on_data({key(1, 1, 0), 1, {8, 1}}, out_);
  ASSERT_TRUE(core_.inputs_ready({50, 1}, 10, out_).ok());
  mirror_acks(20);
  core_.on_ack({key(1, 0, 1), 1, 1});
  EXPECT_EQ(core_.log().size(), 1U);
  ASSERT_TRUE(core_.on_world(world_of(1, 1, two()), 30, out_).ok());
  EXPECT_EQ(core_.phase(), RankCore::Phase::kUpdating);
  EXPECT_EQ(core_.log().size(), 0U);
  EXPECT_EQ(core_.received(key(1, 1, 0)), nullptr);
  core_.updated({{102, 1}}, {103, 1}, 30, out_);
  EXPECT_EQ(core_.open_step(), 2);
  EXPECT_EQ(core_.phase(), RankCore::Phase::kExecuting);
}

TEST_F(RankCoreTest, ACommitItHasNotVotedForIsABrokenProtocol) {
  EXPECT_FALSE(core_.on_world(world_of(1, 1, two()), 30, out_).ok());
}

TEST_F(RankCoreTest, WhatComesAgainIsAcknowledgedAndChangesNothing) {
  out_.clear();
  core_.on_data({key(1, 1, 0), 1, {8, 1}}, out_);
  core_.on_data({key(1, 1, 0), 1, {9, 1}}, out_);
  core_.on_data({key(0, 1, 0), 1, {9, 1}}, out_);  // of a committed step
  EXPECT_EQ(of_kind<DataAck>(out_).size(), 3U);
  EXPECT_EQ(core_.received(key(1, 1, 0))->payload.word, 8U);
  core_.on_data({key(2, 1, 0), 1, {8, 1}}, out_);  // a peer that knows of the commit already
  EXPECT_NE(core_.received(key(2, 1, 0)), nullptr);
  core_.on_data({key(3, 1, 0), 1, {8, 1}}, out_);
  EXPECT_EQ(core_.received(key(3, 1, 0)), nullptr);
}

TEST_F(RankCoreTest, AdoptionIsOneHandler) {
  ASSERT_TRUE(core_.post(key(1, 0, 1), Retain::kResult, {7, 1}, 0, out_).ok());
  ASSERT_TRUE(core_.post(key(1, 0, 1, 9), Retain::kRegather, {}, 0, out_).ok());
  core_.on_ack({key(1, 0, 1), 1, 1});
  core_.on_ack({key(1, 0, 1, 9), 1, 1});
  EXPECT_EQ(core_.log().num_unacked(), 0U);
  out_.clear();
  ASSERT_TRUE(core_.on_world(world_of(2, 0, two(2)), 50, out_).ok());
  // Sent again at once, to the new place, under the new generation; the shard is made anew.
  ASSERT_EQ(of_kind<Data>(out_).size(), 2U);
  for (const Envelope& e : out_) {
    const auto* data = std::get_if<Data>(&e.message);
    if (data == nullptr) continue;
    EXPECT_EQ(e.to, worker_address(2));
    EXPECT_EQ(data->generation, 2);
    EXPECT_EQ(data->payload.word, data->key.micro_batch == 9 ? 101U : 7U);
  }
  // Acknowledgements of the earlier life say nothing about this one.
  core_.on_ack({key(1, 0, 1), 1, 1});
  core_.on_ack({key(1, 0, 1), 2, 1});
  EXPECT_EQ(core_.log().num_unacked(), 2U);
  core_.on_ack({key(1, 0, 1), 2, 2});
  EXPECT_EQ(core_.log().num_unacked(), 1U);
  // Messages of the old generation are fenced, an older world is ignored.
  out_.clear();
  core_.on_data({key(1, 1, 0), 1, {8, 1}}, out_);
  EXPECT_TRUE(out_.empty());
  ASSERT_TRUE(core_.on_world(world_of(1, 0, two()), 60, out_).ok());
  EXPECT_TRUE(out_.empty());
}

TEST_F(RankCoreTest, ANewMirrorGetsAllBeforeTheNextVote) {
  ASSERT_TRUE(core_.inputs_ready({50, 1}, 10, out_).ok());
  mirror_acks(20);
  EXPECT_EQ(of_kind<Vote>(out_).size(), 1U);
  out_.clear();
  auto ranks = two();
  ranks[0].mirror = 1;
  ASSERT_TRUE(core_.on_world(world_of(2, 0, ranks), 50, out_).ok());
  EXPECT_TRUE(of_kind<Vote>(out_).empty());
  EXPECT_EQ(of_kind<PutState>(out_).size(), 1U);
  EXPECT_EQ(of_kind<PutInputs>(out_).size(), 1U);
  mirror_acks(60);  // by node 2: it is not the mirror any more
  EXPECT_TRUE(of_kind<Vote>(out_).empty());
  core_.on_mirror_ack({0, 1, 2, 1, 0, 0}, 70, out_);
  core_.on_mirror_ack({0, 1, 2, 1, 1, kNone}, 70, out_);
  ASSERT_EQ(of_kind<Vote>(out_).size(), 1U);
  EXPECT_EQ(of_kind<Vote>(out_)[0].generation, 2);
}

TEST(Adopter, RestoresTheCommittedStepAndGoesOn) {
  RankOptions options;
  options.incarnation = 2;
  options.worker = 2;
  RankCore core(options, world_of(3, 5, {{2, 2, 0, 1}}), 0);
  Outbox out;
  core.tick(0, out);
  const auto fetches = of_kind<Fetch>(out);
  ASSERT_EQ(fetches.size(), 2U);  // its source and its mirror
  EXPECT_EQ(fetches[0].step, 5);
  core.on_data({key(6, 1, 0), 3, {8, 1}}, out);  // no rank 1 in this world
  core.on_fetched({0, 2, 3, 0, false, kNone, {}, {}});
  EXPECT_FALSE(core.lost());
  core.on_fetched({0, 1, 3, 1, true, 4, {{1, 1}}, {{2, 1}}});  // an answer to an earlier life
  EXPECT_EQ(core.phase(), RankCore::Phase::kRestoring);
  core.on_fetched({0, 2, 3, 1, true, 4, {{1, 1}}, {{2, 1}}});
  ASSERT_EQ(core.phase(), RankCore::Phase::kRedoing);
  out.clear();
  core.restored({{3, 1}}, {4, 1}, 10, out);
  EXPECT_EQ(core.open_step(), 6);
  // Its mirror is not the one that served it: it gets the whole state.
  EXPECT_EQ(of_kind<PutState>(out).size(), 1U);
}

TEST(Adopter, SaysWhenNobodyHasTheState) {
  RankOptions options;
  options.incarnation = 2;
  options.worker = 2;
  RankCore core(options, world_of(3, 5, {{2, 2, 0, 1}}), 0);
  Outbox out;
  core.on_fetched({0, 2, 3, 0, false, kNone, {}, {}});
  core.on_fetched({0, 2, 3, 1, false, kNone, {}, {}});
  EXPECT_TRUE(core.lost());
  core.tick(100 * kMs, out);
  ASSERT_EQ(of_kind<Lost>(out).size(), 1U);
  // A later generation may name another source: ask again.
  ASSERT_TRUE(core.on_world(world_of(4, 5, {{2, 2, 0, 0}}), 100 * kMs, out).ok());
  EXPECT_FALSE(core.lost());
}

TEST(Hosting, FollowsTheWorld) {
  const WorldRef w = world_of(4, 0, {{0, 1, 2, 2}, {1, 3, 2, 2}, {0, 2, 2, 2}});
  const auto mine = hosting_change(*w, 0, true, {{0, 1}, {1, 2}, {2, 1}});
  EXPECT_FALSE(mine.quit);
  EXPECT_EQ(mine.drop, (std::vector<RankId>{1, 2}));
  EXPECT_EQ(mine.adopt, (std::vector<RankId>{2}));
  EXPECT_TRUE(hosting_change(*w, 7, true, {}).quit);    // taken for dead
  EXPECT_FALSE(hosting_change(*w, 7, false, {}).quit);  // not heard of yet
}

}  // namespace
}  // namespace sgactor::supervision
