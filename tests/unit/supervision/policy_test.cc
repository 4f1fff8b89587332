#include "supervision/policy/fault_policy.h"
#include "supervision/policy/storm_breaker.h"
#include "supervision/policy/xid_table.h"

#include <gtest/gtest.h>

#include <map>

namespace sgactor::supervision {
namespace {

// One line a code: what the catalog's immediate action becomes here. Written down a second time on
// purpose, as plain numbers, so that a slip in the table's ranges shows.
const std::map<XidAction, std::vector<int32_t>> kExpected = {
    {XidAction::kIgnore,
     {14,  37,  38,  43,  44,  63,  66,  67,  92,  93,  106, 107, 108, 121, 137, 141,
      147, 148, 152, 153, 154, 157, 159, 160, 161, 162, 163, 164, 165, 166, 168, 170}},
    {XidAction::kRestartWorker,
     {8,   11,  13,  25,  31,  32,  39,  40,  41,  45,  60,  68,  69,  70,  71, 72,  75,
      76,  77,  80,  82,  83,  84,  85,  86,  88,  89,  94,  96,  97,  98,  99, 100, 101,
      102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139}},
    {XidAction::kResetDevice, {46,  48,  62,  64,  74,  95,  109, 110, 119, 120, 136, 140,
                               143, 144, 145, 146, 149, 150, 155, 156, 158, 169, 171, 172}},
    {XidAction::kDrainHost, {79, 151, 167}},
    {XidAction::kRepair, {54, 78, 142}},
};

class XidCode : public testing::TestWithParam<std::pair<int32_t, XidAction>> {};

TEST_P(XidCode, HasItsAction) {
  const auto [code, action] = GetParam();
  EXPECT_EQ(xid_action(code), action) << code << " " << xid_name(code);
  EXPECT_FALSE(xid_name(code).empty()) << code;
}

std::vector<std::pair<int32_t, XidAction>> all_codes() {
  std::vector<std::pair<int32_t, XidAction>> out;
  for (const auto& [action, codes] : kExpected) {
    for (const int32_t code : codes) out.emplace_back(code, action);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Catalog, XidCode, testing::ValuesIn(all_codes()),
                         [](const auto& info) { return "Xid" + std::to_string(info.param.first); });

TEST(XidTable, IsAscendingAndWholeAndUnknownCodesReset) {
  int32_t last = 0;
  size_t codes = 0;
  for (const XidEntry& e : xid_table()) {
    EXPECT_GT(e.first, last) << e.name;
    EXPECT_GE(e.last, e.first) << e.name;
    last = e.last;
    codes += static_cast<size_t>(e.last - e.first + 1);
  }
  EXPECT_EQ(codes, all_codes().size());  // every code of the table is in the list above
  for (const int32_t code : {-1, 0, 1, 7, 90, 111, 173, 100000}) {
    EXPECT_EQ(xid_action(code), XidAction::kResetDevice) << code;
    EXPECT_TRUE(xid_name(code).empty()) << code;
  }
}

TEST(FaultPolicy, DecidesByKindAndScope) {
  EXPECT_EQ(decide(FaultKind::kActorFailure, Scope::kActor), Action::kRespawnActor);
  EXPECT_EQ(decide(FaultKind::kActorFailure, Scope::kRank), Action::kReplaceWorker);
  EXPECT_EQ(decide(FaultKind::kWorkerExit, Scope::kCall), Action::kReplaceWorker);
  EXPECT_EQ(decide(FaultKind::kDeviceFault, Scope::kDevice), Action::kResetDevice);
  EXPECT_EQ(decide(FaultKind::kHostLoss, Scope::kDevice), Action::kDropHost);
  EXPECT_EQ(decide(FaultKind::kHang, Scope::kRank), Action::kReplaceWorker);
  EXPECT_EQ(decide(FaultKind::kPartition, Scope::kChannel), Action::kRetry);
  EXPECT_EQ(decide(FaultKind::kPartition, Scope::kRank), Action::kReplaceWorker);
  EXPECT_EQ(decide(FaultKind::kSlowWorker, Scope::kRank), Action::kIgnore);
  EXPECT_EQ(decide(FaultKind::kWrongBits, Scope::kCall), Action::kQuarantineDevice);
  EXPECT_EQ(decide(FaultKind::kStorageError, Scope::kCall), Action::kRetry);
  EXPECT_EQ(decide(FaultKind::kCoordinatorExit, Scope::kRank), Action::kRestartCoordinator);
  for (int32_t k = 0; k < kNumFaultKinds; ++k) {
    EXPECT_EQ(decide(static_cast<FaultKind>(k), Scope::kJob), Action::kStopJob);
    EXPECT_FALSE(to_string(static_cast<FaultKind>(k)).empty());
  }
  EXPECT_EQ(action_of(XidAction::kIgnore), Action::kIgnore);
  EXPECT_EQ(action_of(XidAction::kRestartWorker), Action::kReplaceWorker);
  EXPECT_EQ(action_of(XidAction::kResetDevice), Action::kResetDevice);
  EXPECT_EQ(action_of(XidAction::kDrainHost), Action::kDrainHost);
  EXPECT_EQ(action_of(XidAction::kRepair), Action::kQuarantineDevice);
}

TEST(StormBreaker, OnePlaceAgainAndAgainIsQuarantined) {
  StormBreaker storms({60'000'000, 20, 3});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(storms.on_fault(1, i), StormBreaker::Verdict::kGoOn);
  EXPECT_EQ(storms.on_fault(2, 3), StormBreaker::Verdict::kGoOn);
  EXPECT_EQ(storms.on_fault(1, 4), StormBreaker::Verdict::kQuarantinePlace);
  // A minute later it has a clean slate.
  EXPECT_EQ(storms.on_fault(1, 60'000'004), StormBreaker::Verdict::kGoOn);
}

TEST(StormBreaker, ManyFaultsAnywhereStopTheJob) {
  StormBreaker storms({60'000'000, 5, 3});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(storms.on_fault(i, i), StormBreaker::Verdict::kGoOn);
  EXPECT_EQ(storms.on_fault(9, 5), StormBreaker::Verdict::kStopJob);
  EXPECT_EQ(storms.num_recent(), 6);
  EXPECT_EQ(storms.on_fault(9, 60'000'006), StormBreaker::Verdict::kGoOn);
}

}  // namespace
}  // namespace sgactor::supervision
