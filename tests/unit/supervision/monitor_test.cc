#include "supervision/monitor/device_faults.h"
#include "supervision/monitor/driver_faults.h"
#include "supervision/monitor/hang_inquiry.h"
#include "supervision/monitor/hang_report.h"
#include "supervision/monitor/progress_watch.h"
#include "tests/unit/transport/topology/fake_nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>

namespace sgactor::supervision {
namespace {

PendingOperation pending(uint64_t key, int64_t waited_ms, std::vector<int32_t> members) {
  PendingOperation out;
  out.lane = 1;
  out.launch = "reduce" + std::to_string(key);
  out.key = key;
  out.step = 7;
  out.waited_ms = waited_ms;
  out.members = std::move(members);
  return out;
}

RankView view(int32_t rank, std::vector<PendingOperation> operations, bool heard = true) {
  RankView out;
  out.rank = rank;
  out.heard = heard;
  out.pending = std::move(operations);
  return out;
}

TEST(HangReport, NamesTheRankThatDidNotJoin) {
  const std::vector<RankView> views = {view(0, {pending(5, 400, {0, 1, 2})}),
                                       view(1, {}, /*heard=*/false),
                                       view(2, {pending(5, 900, {0, 1, 2})})};
  const HangReport report = find_hang(views);
  ASSERT_EQ(report.stuck.size(), 1U);
  EXPECT_EQ(report.stuck[0].waiting, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(report.stuck[0].missing, std::vector<int32_t>{1});
  EXPECT_EQ(report.stuck[0].operation.waited_ms, 900);
  EXPECT_EQ(report.culprits, std::vector<int32_t>{1});
  const std::string text = to_text(report, views);
  EXPECT_NE(text.find("waiting for rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 0, 2 in reduce5 (lane 1, step 7, micro-batch 0"), std::string::npos);
  EXPECT_NE(text.find("rank 1: its worker does not answer"), std::string::npos) << text;
}

TEST(HangReport, FollowsAChainToItsEnd) {
  // 0 waits for 1, which waits for 2, which waits for nobody.
  RankView last = view(2, {});
  last.actors.push_back({"subgraph layer3", "handle_ready", 7, 1200});
  const std::vector<RankView> views = {view(0, {pending(1, 300, {0, 1})}),
                                       view(1, {pending(2, 800, {1, 2})}), last};
  const HangReport report = find_hang(views);
  ASSERT_EQ(report.stuck.size(), 2U);
  EXPECT_EQ(report.stuck[0].operation.key, 2U) << "who has waited longest comes first";
  EXPECT_EQ(report.culprits, std::vector<int32_t>{2});
  const std::string text = to_text(report, views);
  EXPECT_NE(text.find("rank 2: subgraph layer3 handled handle_ready of step 7 1200 ms ago"),
            std::string::npos)
      << text;
}

TEST(HangReport, WhatAllHaveStartedIsUnderWay) {
  const std::vector<RankView> views = {view(0, {pending(1, 50, {0, 1})}),
                                       view(1, {pending(1, 60, {0, 1})})};
  const HangReport report = find_hang(views);
  EXPECT_TRUE(report.stuck.empty());
  EXPECT_TRUE(report.culprits.empty());
}

TEST(HangReport, OtherStepsAndMicroBatchesAreOtherExecutions) {
  PendingOperation later = pending(1, 10, {0, 1});
  later.micro_batch = 1;
  const HangReport report = find_hang({view(0, {pending(1, 50, {0, 1})}), view(1, {later})});
  EXPECT_EQ(report.stuck.size(), 2U);
  EXPECT_TRUE(report.culprits.empty()) << "each waits for the other";
}

TEST(HangReport, TheOrderOfTheViewsDoesNotMatter) {
  std::vector<RankView> views = {view(0, {pending(1, 300, {0, 1})}),
                                 view(1, {pending(2, 300, {1, 2})}), view(2, {})};
  const std::string text = to_text(find_hang(views), views);
  std::reverse(views.begin(), views.end());
  EXPECT_EQ(to_text(find_hang(views), views), text);
}

TEST(HangReport, WhoIsDoneWithAnOperationIsNotMissing) {
  RankView sender = view(0, {});
  sender.done.push_back({1, 7, 0});
  const std::vector<RankView> views = {sender, view(1, {pending(1, 900, {0, 1})})};
  const HangReport report = find_hang(views);
  EXPECT_TRUE(report.stuck.empty());
  EXPECT_TRUE(report.culprits.empty());
  ASSERT_EQ(report.under_way.size(), 1U);
  EXPECT_EQ(report.under_way[0].done, std::vector<int32_t>{0});
  const std::string text = to_text(report, views);
  EXPECT_NE(text.find("rank 0 is done with it"), std::string::npos) << text;
}

TEST(HangReport, WhoIsNotHeardIsToBlameBeforeAnybodyWaits) {
  const std::vector<RankView> views = {view(0, {}), view(1, {}, /*heard=*/false)};
  EXPECT_EQ(find_hang(views).culprits, std::vector<int32_t>{1});
}

TEST(HangReport, WhereNobodyWaitsWhoeverIsAtWorkKeepsTheOthers) {
  RankView busy = view(1, {});
  busy.at_work = true;
  EXPECT_EQ(find_hang({view(0, {}), busy}).culprits, std::vector<int32_t>{1});
  // At work, but waiting: not the one.
  RankView waits = view(0, {pending(1, 10, {0, 1})});
  waits.at_work = true;
  EXPECT_EQ(find_hang({waits, busy}).culprits, std::vector<int32_t>{1});
}

TEST(HangInquiry, IsCompleteWithoutThoseThatAreSilent) {
  HangInquiry inquiry({{4, {0, 2}}, {7, {1}}}, 1000);
  EXPECT_FALSE(inquiry.complete({7}));
  inquiry.answer(4, {view(2, {pending(1, 5, {1, 2})})});
  inquiry.answer(4, {});             // again
  inquiry.answer(9, {view(1, {})});  // nobody asked
  EXPECT_FALSE(inquiry.complete({}));
  EXPECT_TRUE(inquiry.complete({7}));
  const std::vector<RankView> views = inquiry.views();
  ASSERT_EQ(views.size(), 3U);
  EXPECT_FALSE(views[0].heard) << "its worker said nothing of rank 0";
  EXPECT_FALSE(views[1].heard);
  EXPECT_TRUE(views[2].heard);
  EXPECT_EQ(views[2].pending.size(), 1U);
  EXPECT_EQ(inquiry.begun_ms(), 1000);
}

TEST(ProgressWatch, BeginsWithWhatIsExpected) {
  ProgressWatch watch(10, 10'000, 2000);
  watch.on_count(0, 1, 0);
  EXPECT_EQ(watch.limit_ms(), 200'000) << "a machine may have a tenth of the speed";
  EXPECT_FALSE(watch.stands_still(199'999));
  EXPECT_TRUE(watch.stands_still(200'000));
  EXPECT_EQ(ProgressWatch(10, 10'000, 1).limit_ms(), ProgressWatch::kGuessFloorMs)
      << "what comes before the first kernel is none of the model's";
  EXPECT_EQ(ProgressWatch(10, 90'000, 1).limit_ms(), 90'000);
  // Three steps say more.
  for (const double ms : {4000.0, 4000.0, 4000.0}) watch.on_step(ms);
  EXPECT_EQ(watch.limit_ms(), 40'000);
}

TEST(ProgressWatch, KnowsAStandstillByTheMedianStep) {
  ProgressWatch watch(10, 50);
  watch.restart(0);
  EXPECT_FALSE(watch.stands_still(1'000'000)) << "nothing is known of a step's time";
  for (const double ms : {100.0, 20.0, 20.0}) watch.on_step(ms);
  EXPECT_EQ(watch.limit_ms(), 200) << "one slow step is none";
  watch.on_count(0, 5, 1000);
  EXPECT_FALSE(watch.stands_still(1199));
  EXPECT_TRUE(watch.stands_still(1200));
  EXPECT_EQ(watch.still_ms(1200), 200);
  watch.on_count(0, 5, 1300);
  EXPECT_TRUE(watch.stands_still(1300)) << "a count that does not rise is no progress";
  watch.on_count(1, 1, 1300);
  EXPECT_FALSE(watch.stands_still(1300)) << "one worker that moves is enough";
  watch.restart(1600);
  EXPECT_FALSE(watch.stands_still(1700));
}

TEST(ProgressWatch, FollowsTheLastStepsAndKeepsTheFloor) {
  ProgressWatch watch(2, 100, 500);
  for (int i = 0; i < 5; ++i) watch.on_step(1000);
  EXPECT_EQ(watch.limit_ms(), 2000);
  for (int i = 0; i < 31; ++i) watch.on_step(10);
  EXPECT_EQ(watch.limit_ms(), 100) << "the floor";
  ProgressWatch never(0, 100, 500);
  EXPECT_FALSE(never.stands_still(1'000'000));
}

TEST(ProgressWatch, NobodyStandsStillWhoWasNotSeenToBegin) {
  // Steps can be done before the first heartbeat; the clock counts from the machine's start.
  ProgressWatch watch(2, 100);
  for (int i = 0; i < 5; ++i) watch.on_step(10);
  EXPECT_FALSE(watch.stands_still(61'214'853));
  EXPECT_EQ(watch.still_ms(61'214'853), 0);
  watch.on_count(0, 1, 61'214'900);
  EXPECT_FALSE(watch.stands_still(61'214'999));
  EXPECT_TRUE(watch.stands_still(61'215'000));
}

TEST(DeviceFaults, ComeInOrderAndAsTheTableSays) {
  InjectedDeviceFaults faults;
  EXPECT_FALSE(faults.next().has_value());
  faults.add({0, 79});
  faults.add({1, 31});
  const auto first = faults.next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->xid, 79);
  EXPECT_EQ(action_of(*first), Action::kDrainHost);
  EXPECT_EQ(to_string(*first), "XID 79 (GPU_HAS_FALLEN_OFF_THE_BUS): drain host");
  EXPECT_EQ(action_of(*faults.next()), Action::kReplaceWorker);
  EXPECT_FALSE(faults.next().has_value());
  EXPECT_EQ(to_string(DeviceFault{0, 999}), "XID 999 (unknown): reset device");
}

TEST(DriverFaults, WithoutADriverSayWhyOnceAndHearNothing) {
  DriverFaults faults({.file = "libno-such-nvml.so.1", .visible = ""});
  const Status status = faults.assign(0, 0, {0});
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("libno-such-nvml.so.1"), std::string::npos);
  EXPECT_TRUE(faults.assign(1, 0, {0}).ok());
  EXPECT_FALSE(faults.next().has_value());
  EXPECT_EQ(faults.event_fd(), -1);
}

/// The next fault, which must come within ten seconds.
DeviceFault wait(DriverFaults& faults) {
  pollfd fd = {faults.event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 10'000), 1);
  return faults.next().value_or(DeviceFault{-1, -1});
}

TEST(DriverFaults, ReachTheWorkersThatHaveTheDevice) {
  void* library = dlopen(SGA_FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto raise =
      reinterpret_cast<decltype(&fake_nvml_raise)>(dlsym(library, "fake_nvml_raise"));
  ASSERT_NE(raise, nullptr);
  DriverFaults faults({.file = SGA_FAKE_NVML, .visible = "3,1,2"});
  const std::vector<int32_t> all = {0, 1, 2};
  ASSERT_TRUE(faults.assign(10, 0, all).ok());
  ASSERT_TRUE(faults.assign(11, 1, all).ok());
  raise(1, 48);  // as the bus counts: CUDA's second
  const DeviceFault second = wait(faults);
  EXPECT_EQ(second.worker, 11);
  EXPECT_EQ(second.xid, 48);
  // One that comes later, on a device that nobody has had before, is heard of as well.
  ASSERT_TRUE(faults.assign(12, 2, all).ok());
  raise(2, 94);
  EXPECT_EQ(wait(faults).worker, 12);
  // Whoever takes the place of a worker has its device, and the dead one hears nothing.
  faults.forget(10);
  ASSERT_TRUE(faults.assign(13, 0, all).ok());
  raise(3, 79);
  EXPECT_EQ(wait(faults).worker, 13);
  EXPECT_FALSE(faults.next().has_value());
}

}  // namespace
}  // namespace sgactor::supervision
