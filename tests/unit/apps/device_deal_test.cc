// Each worker of a node has a device of its own as long as there are enough.
#include "apps/sgactor/device_deal.h"

#include "apps/sgactor/cluster_ranks.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

using Texts = std::vector<std::string>;

TEST(DeviceDeal, AllAreThoseThatAreVisible) {
  EXPECT_EQ(devices_of_host("cuda:all", 3), (Texts{"cuda:0", "cuda:1", "cuda:2"}));
  EXPECT_EQ(devices_of_host("cuda", 2), (Texts{"cuda:0", "cuda:1"}));
  EXPECT_EQ(devices_of_host("cuda:all", 0), Texts{"cuda:0"}) << "how many is not known";
  EXPECT_EQ(devices_of_host("cuda:2", 4), Texts{"cuda:2"}) << "one is named";
  EXPECT_EQ(devices_of_host("cpu:2", 4), Texts{"cpu:2"});
}

TEST(DeviceDeal, WorkersHaveTheirOwnInTheOrderOfTheirIndices) {
  const Texts all = devices_of_host("cuda:all", 4);
  EXPECT_EQ(deal_devices(all, 3, 0), (Texts{"cuda:0", "cuda:1", "cuda:2"}));
  EXPECT_EQ(sharing_note(all, 4), "");
  // The second process that a launcher has started on the host.
  EXPECT_EQ(deal_devices(all, 2, 2), (Texts{"cuda:2", "cuda:3"}));
}

TEST(DeviceDeal, MoreWorkersThanDevicesShareAndThatIsSaid) {
  const Texts two = devices_of_host("cuda:all", 2);
  EXPECT_EQ(deal_devices(two, 5, 0), (Texts{"cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"}));
  EXPECT_EQ(sharing_note(two, 5), "5 workers share 2 devices (cuda:0 to cuda:1)");
  EXPECT_EQ(sharing_note({"cuda:3"}, 2), "2 workers share device cuda:3");
  // Threads are not shared by taking them twice.
  EXPECT_EQ(deal_devices({"cpu:2"}, 2, 0), (Texts{"cpu:2", "cpu:2"}));
  EXPECT_EQ(sharing_note({"cpu:2"}, 2), "");
}

TEST(DeviceDeal, OneMoreTakesWhatIsFree) {
  const Texts all = devices_of_host("cuda:all", 3);
  EXPECT_EQ(least_taken(all, {}, {}), "cuda:0");
  EXPECT_EQ(least_taken(all, {"cuda:0", "cuda:2"}, {}), "cuda:1");
  EXPECT_EQ(least_taken(all, {"cuda:0", "cuda:1", "cuda:2", "cuda:0"}, {}), "cuda:1");
  EXPECT_EQ(least_taken(all, {"cuda:0", "cuda:2"}, {"cuda:1"}), "cuda:0");
  EXPECT_EQ(least_taken(all, {}, {"cuda:0", "cuda:1", "cuda:2"}), "");
}

TEST(DealByKind, RanksStayAmongWorkersThatComputeAsTheyDid) {
  using Given = std::map<int32_t, std::vector<int32_t>>;
  // A worker of b is gone: the other one takes its rank, not one of a.
  const auto lost = deal_by_kind({"a", "a", "b", "b"}, {{0, "a"}, {1, "a"}, {3, "b"}});
  ASSERT_TRUE(lost.ok()) << lost.status().message();
  EXPECT_EQ(*lost, (Given{{0, {0}}, {1, {1}}, {3, {2, 3}}}));
  const auto few = deal_by_kind({"a", "b", "a", "b", "a"}, {{4, "b"}, {7, "a"}, {9, "a"}});
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(*few, (Given{{4, {1, 3}}, {7, {0, 2}}, {9, {4}}}));
  // One that has not said by what it computes helps where most is to do; too many get nothing.
  const auto fresh = deal_by_kind({"a", "a", "b"}, {{0, "a"}, {1, "b"}, {2, ""}, {3, "b"}});
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(*fresh, (Given{{0, {0}}, {2, {1}}, {1, {2}}}));
  const auto none = deal_by_kind({"a", "b", "b"}, {{0, "a"}, {1, "c"}});
  EXPECT_EQ(none.status().code(), Code::kUnsupported);
  EXPECT_EQ(none.status().message(), "no worker computes by b, as rank 1, 2 must");
}

}  // namespace
}  // namespace sgactor::apps
