// Each worker of a node has a device of its own as long as there are enough.
#include "apps/sgactor/device_deal.h"

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

}  // namespace
}  // namespace sgactor::apps
