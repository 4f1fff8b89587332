#include "supervision/chaos/fault_timeline.h"

#include "supervision/recovery/placement.h"

#include <gtest/gtest.h>

namespace sgactor::supervision {
namespace {

using Victim = TimelineFault::Victim;

/// Two ranks on one host, a step a second: 2 GB of state each, updates that read 1 GB and take a
/// tenth of a second.
TimelineRun two_ranks(int32_t spares) {
  TimelineRun run;
  run.steps = 100;
  run.step_s = 1;
  run.further_rank_s = 1;
  run.communication_s = 0.2;
  run.ranks = {{2'000'000'000, 1'000'000'000, 0.1, 0}, {2'000'000'000, 1'000'000'000, 0.1, 0}};
  run.hosts = {"a"};
  run.host_of_device.assign(2 + static_cast<size_t>(spares), 0);
  run.spares = spares;
  run.times.ready_s = 0.5;
  return run;
}

TimelineFault fault(TimelineKind kind, int64_t rank, int64_t step, double part = 0) {
  TimelineFault out;
  out.kind = kind;
  out.index = rank;
  out.step = step;
  out.part = part;
  return out;
}

TEST(FaultTimeline, WithoutFaultsItIsTheStepsTime) {
  const Timeline t = play_faults(two_ranks(1), {});
  EXPECT_DOUBLE_EQ(t.seconds, 100);
  EXPECT_EQ(t.steps_done, 100);
  EXPECT_EQ(t.workers, 2);
  EXPECT_EQ(t.spares, 1);
  EXPECT_TRUE(t.ended.empty());
}

TEST(FaultTimeline, SpareReadsTheCopyAndReplaysTheOpenStep) {
  const Timeline t = play_faults(two_ranks(1), {fault(TimelineKind::kKillWorker, 1, 23, 0.25)});
  ASSERT_EQ(t.records.size(), 1U);
  const TimelineRecord& r = t.records[0];
  EXPECT_DOUBLE_EQ(r.time_s, 23.25);
  EXPECT_EQ(r.step, 23);
  EXPECT_EQ(r.victim, "rank 1 on a:1");
  EXPECT_EQ(r.action, "replace worker");
  EXPECT_NEAR(r.detected_s, 0.010, 1e-9);
  EXPECT_NEAR(r.fenced_s, 0.014, 1e-9);
  EXPECT_NEAR(r.placed_s, 0.014, 1e-9);
  EXPECT_EQ(r.updates_again, 3);  // the copy is of step 20
  EXPECT_EQ(r.state_moved_bytes, 2'000'000'000);
  EXPECT_NEAR(r.moved_s, 2.5, 1e-9);  // with the inputs of three updates, at 2 GB/s
  EXPECT_NEAR(r.restored_s, 0.014 + 0.5 + 2.5 + 0.3, 1e-9);
  EXPECT_NEAR(r.replayed_s, 0.25, 1e-9);
  EXPECT_NEAR(r.recovery_s, 3.564, 1e-9);
  EXPECT_NEAR(t.seconds, 103.564, 1e-6);
  EXPECT_EQ(t.steps_done, 100);
  // The node starts another worker where the one was killed.
  EXPECT_EQ(t.spares, 1);
}

TEST(FaultTimeline, WithoutASpareAFreshWorkerTakesOver) {
  const Timeline t = play_faults(two_ranks(0), {fault(TimelineKind::kKillWorker, 0, 20)});
  ASSERT_EQ(t.records.size(), 1U);
  EXPECT_NEAR(t.records[0].placed_s, 0.010 + 0.1, 1e-9);
  EXPECT_EQ(t.records[0].updates_again, 0);
  EXPECT_EQ(t.workers, 2);
  EXPECT_EQ(t.smaller_s, 0);
}

TEST(FaultTimeline, DeviceThatIsGoneLeavesFewerWorkers) {
  TimelineFault gone = fault(TimelineKind::kDeviceFault, 1, 20);
  gone.value = 54;  // needs repair
  const Timeline t = play_faults(two_ranks(0), {gone});
  ASSERT_EQ(t.records.size(), 1U);
  const TimelineRecord& r = t.records[0];
  EXPECT_NEAR(r.placed_s, 0.001 + 0.004 + 2 + 0.5, 1e-9);
  EXPECT_NEAR(r.moved_s, 2, 1e-9);  // one process reads both
  EXPECT_NEAR(r.recovery_s, 2.505 + 0.5 + 2, 1e-9);
  EXPECT_EQ(t.workers, 1);
  EXPECT_NEAR(t.smaller_s, 80, 1e-6);
  EXPECT_NEAR(t.seconds, 20 + 5.005 + 160, 1e-6);
}

TEST(FaultTimeline, EndsWhereNoDeviceHasRoom) {
  TimelineRun run = two_ranks(0);
  run.rank_bytes = 6;
  run.device_bytes = 10;
  run.checkpoint_interval = 8;
  TimelineFault gone = fault(TimelineKind::kDeviceFault, 1, 20);
  gone.value = 54;
  const Timeline t = play_faults(run, {gone, fault(TimelineKind::kKillWorker, 0, 30)});
  EXPECT_NE(t.ended.find("2 ranks take 12 B of a device's 10 B"), std::string::npos) << t.ended;
  EXPECT_EQ(t.steps_done, 20);
  EXPECT_EQ(t.checkpoint, 16);
  EXPECT_EQ(t.missed, 1);
}

TEST(FaultTimeline, ModesSayWhereStateComesFrom) {
  TimelineRun run = two_ranks(1);
  const std::vector<TimelineFault> one = {fault(TimelineKind::kKillWorker, 1, 25)};
  run.copies = TimelineRun::Copies::kNone;
  EXPECT_NE(play_faults(run, one).ended.find("resilience.mode"), std::string::npos);
  run.copies = TimelineRun::Copies::kReplicas;
  const Timeline t = play_faults(run, one);
  EXPECT_EQ(t.records[0].updates_again, 0);
  EXPECT_NEAR(t.records[0].moved_s, 2, 1e-9);  // written and read
  // Both replicas at one moment.
  const Timeline both = play_faults(run, {one[0], fault(TimelineKind::kKillWorker, 0, 25)});
  EXPECT_NE(both.ended.find("no data-parallel replica of rank 0"), std::string::npos) << both.ended;
}

TEST(FaultTimeline, FaultInARecoveryBeginsItAgain) {
  TimelineFault second = fault(TimelineKind::kKillWorker, 0, 0);
  second.in_recovery = second.restoring = second.of_adopter = true;
  const Timeline t =
      play_faults(two_ranks(2), {fault(TimelineKind::kKillWorker, 1, 20, 0.5), second});
  ASSERT_EQ(t.records.size(), 2U);
  EXPECT_LT(t.records[0].recovery_s, 0);
  EXPECT_NEAR(t.records[0].lost_s, 0.014, 1e-9);
  EXPECT_EQ(t.records[1].victim, "rank 1 on a:2") << "the spare that took over";
  EXPECT_NEAR(t.records[1].time_s, 20.514, 1e-9);
  EXPECT_NEAR(t.records[1].recovery_s, 0.014 + 0.5 + 1 + 0.5, 1e-9);
  EXPECT_NEAR(t.seconds, 100 + 0.014 + 2.014, 1e-6);
}

TEST(FaultTimeline, SilenceIsNoticedLaterThanAnExit) {
  const auto detected = [](TimelineKind kind) {
    return play_faults(two_ranks(1), {fault(kind, 0, 20)}).records.at(0).detected_s;
  };
  EXPECT_NEAR(detected(TimelineKind::kHangWorker), 0.25, 1e-9);
  EXPECT_NEAR(detected(TimelineKind::kStallWorker), 10, 1e-9);
  EXPECT_LT(detected(TimelineKind::kKillActor), 0.01);
}

TEST(FaultTimeline, WhatCostsNoWorkerCostsItsTime) {
  const auto lost = [](TimelineKind kind, int64_t value, double part = 0) {
    TimelineFault f = fault(kind, 0, 20, part);
    f.value = value;
    const Timeline t = play_faults(two_ranks(0), {f});
    EXPECT_NEAR(t.seconds - 100, t.records.at(0).lost_s, 1e-6);
    return t.records.at(0).lost_s;
  };
  EXPECT_NEAR(lost(TimelineKind::kLateFrame, 50), 0.05, 1e-9);
  EXPECT_EQ(lost(TimelineKind::kDuplicateFrame, 0), 0);
  EXPECT_NEAR(lost(TimelineKind::kSlowWorker, 0), 0.48, 1e-9);
  EXPECT_EQ(lost(TimelineKind::kDeviceFault, 63), 0);  // a row of memory was retired
  EXPECT_NEAR(lost(TimelineKind::kBrokenLink, 1000, 0.5), 1.3 + 0.004 + 0.02 + 0.1, 1e-9);
  // Workers go on up to the vote: nothing is lost to a coordinator that is back before.
  EXPECT_NEAR(lost(TimelineKind::kKillCoordinator, 200), 0, 1e-9);
  EXPECT_NEAR(lost(TimelineKind::kKillCoordinator, 1500), 1, 1e-9);
  EXPECT_NEAR(lost(TimelineKind::kKillCoordinator, 1500, 0.5), 1.5, 1e-9);
}

TEST(FaultTimeline, CoordinatorThatStaysAwayEndsTheRun) {
  TimelineFault f = fault(TimelineKind::kKillCoordinator, 0, 20);
  f.value = 61'000;
  const Timeline t = play_faults(two_ranks(0), {f});
  EXPECT_NE(t.ended.find("orphan_timeout"), std::string::npos) << t.ended;
  EXPECT_NEAR(t.seconds, 80, 1e-6);
}

TEST(FaultTimeline, WrongBitsAreFoundWhereTheyAreLookedFor) {
  TimelineRun run = two_ranks(1);
  const TimelineFault flip = fault(TimelineKind::kWrongBits, 1, 20, 0.25);
  EXPECT_EQ(play_faults(run, {flip}).seconds, 100);
  run.verify_interval = 7;
  const Timeline t = play_faults(run, {flip});
  // The rest of step 21, which 7 divides; all begin it again without that device.
  const double restored = 0.75 + 0.004 + 0.5 + 0.5 + 1;
  EXPECT_NEAR(t.records.at(0).restored_s, restored, 1e-9);
  EXPECT_NEAR(t.seconds, 100 + restored + 0.25, 1e-6);
  EXPECT_EQ(t.spares, 0);
}

TEST(FaultTimeline, HostsGoWithAllTheyHave) {
  TimelineRun run = two_ranks(1);
  run.hosts = {"a", "b", "c"};
  run.host_of_device = {0, 1, 2};
  TimelineFault f = fault(TimelineKind::kLoseHost, 1, 20);
  f.victim = Victim::kHost;
  const Timeline t = play_faults(run, {f});
  EXPECT_EQ(t.records.at(0).victim, "b");
  EXPECT_NEAR(t.records.at(0).detected_s, 15, 1e-9);
  EXPECT_EQ(t.workers, 2);
  EXPECT_EQ(t.spares, 0);
  f.index = 0;
  EXPECT_NE(play_faults(run, {f}).ended.find("coordinator"), std::string::npos);
  // XID 79: the host is left behind the step.
  TimelineFault drained = fault(TimelineKind::kDeviceFault, 1, 20, 0.5);
  drained.value = 79;
  const Timeline left = play_faults(run, {drained});
  EXPECT_NEAR(left.records.at(0).fenced_s, 0.5, 1e-9);
  EXPECT_NEAR(left.seconds, 100 + left.records.at(0).lost_s, 1e-6);
  EXPECT_EQ(left.spares, 0);
}

TEST(FaultTimeline, StormsEndTheRun) {
  TimelineRun run = two_ranks(0);
  run.storms.max_faults = 2;
  run.storms.max_faults_of_place = 3;
  std::vector<TimelineFault> faults;
  for (int64_t i = 0; i < 3; ++i) faults.push_back(fault(TimelineKind::kKillWorker, 0, 20 + i));
  const Timeline t = play_faults(run, faults);
  EXPECT_NE(t.ended.find("3 faults within a minute"), std::string::npos) << t.ended;
}

TEST(FaultTimeline, DrawnFaultsGoOnUntilTheEnd) {
  int64_t drawn = 0;
  const auto more = [&drawn]() -> std::optional<TimelineFault> {
    TimelineFault f;
    f.victim = Victim::kDevice;
    f.time_s = 30.0 * static_cast<double>(++drawn);
    return f;
  };
  const Timeline t = play_faults(two_ranks(0), {}, more);
  EXPECT_GE(t.records.size(), 3U);
  EXPECT_EQ(drawn, static_cast<int64_t>(t.records.size()) + 1);
  EXPECT_EQ(t.steps_done, 100);
}

/// The choice is that of the protocol's placement.
TEST(FaultTimeline, SparesAreChosenAsThePlacementDoes) {
  TimelineRun run = two_ranks(2);
  run.hosts = {"a", "b"};
  run.ranks.resize(3, run.ranks[0]);
  run.host_of_device = {0, 1, 1, 0, 1};  // spares: one a host
  std::vector<Member> workers;
  for (int32_t d = 0; d < 5; ++d) {
    workers.push_back({d, run.host_of_device[static_cast<size_t>(d)], d, 0});
  }
  const auto world = initial_world(3, {0, 1}, {workers.begin(), workers.begin() + 3}, {});
  ASSERT_TRUE(world.ok());
  for (int64_t rank = 0; rank < 3; ++rank) {
    std::vector<Member> left = workers;
    left.erase(left.begin() + rank);
    const auto next = replace_members(*world, {0, 1}, left, {});
    ASSERT_TRUE(next.ok());
    TimelineFault gone = fault(TimelineKind::kDeviceFault, rank, 20);
    gone.value = 54;
    TimelineFault again = gone;
    again.step = 40;
    const Timeline t = play_faults(run, {gone, again});
    const int32_t device = next->ranks[static_cast<size_t>(rank)].worker;
    EXPECT_EQ(t.records.at(1).victim.find(device == 3 ? "on a:" : "on b:") != std::string::npos,
              true)
        << t.records.at(1).victim;
  }
}

}  // namespace
}  // namespace sgactor::supervision
