#include "apps/sgactor/cluster_standing.h"

#include "apps/sgactor/mirror_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace sgactor::apps {
namespace {

TEST(ClusterStanding, ComesBackAsItWasSaid) {
  Standing standing;
  standing.worker = 3;
  standing.life = 9;
  standing.node_pid = 4711;
  standing.ranks = {1, 5};
  standing.incarnations = {1, 4};
  standing.runs = true;
  standing.loaded_step = 7;
  standing.begun = 12;
  standing.address = std::string("\0\xff raw", 6);
  standing.devices = {"cuda:2"};
  const auto back = parse_standing(to_wire(standing).payload);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->worker, 3);
  EXPECT_EQ(back->life, 9);
  EXPECT_EQ(back->node_pid, 4711);
  EXPECT_EQ(back->ranks, standing.ranks);
  EXPECT_EQ(back->incarnations, standing.incarnations);
  EXPECT_TRUE(back->runs);
  EXPECT_EQ(back->loaded_step, 7);
  EXPECT_EQ(back->begun, 12);
  EXPECT_EQ(back->address, standing.address);
  EXPECT_FALSE(back->failed);
  EXPECT_EQ(back->devices, standing.devices);
  const auto terms = parse_terms(to_wire(Terms{1500, "/dev/shm/a"}).payload);
  ASSERT_TRUE(terms.ok());
  EXPECT_EQ(terms->orphan_ms, 1500);
  EXPECT_EQ(terms->mirror, "/dev/shm/a");
}

TEST(ClusterStanding, RefusesWhatIsNone) {
  for (const char* text : {"", "[]", "{}", "{\"worker\":\"a\"}", "{\"orphan_ms\":1}"}) {
    EXPECT_FALSE(parse_standing(text).ok()) << text;
    EXPECT_FALSE(parse_terms(text).ok()) << text;
  }
  Standing standing;
  standing.ranks = {1, 2};
  standing.incarnations = {1};
  EXPECT_FALSE(parse_standing(to_wire(standing).payload).ok());
  EXPECT_EQ(from_hex("0g"), "");
  EXPECT_EQ(from_hex("abc"), "");
}

TEST(MirrorDirectory, StaysWhileAnybodyHoldsItAndGoesWithTheLast) {
  const std::string root = std::filesystem::path(testing::TempDir()) / "mirrors";
  std::filesystem::create_directories(root);
  auto made = MirrorDirectory::create(root);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const std::string path = (*made)->path();
  // A process that dies closes its lock and removes nothing: here it is the directory's own end
  // that is left out, by another who takes it over.
  {
    MirrorHold hold;
    hold.take(path);
    ASSERT_TRUE(hold.held());
    EXPECT_EQ(remove_stale_mirrors(root), 0);
    auto second = MirrorDirectory::adopt(path);
    ASSERT_TRUE(second.ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "the one that took it over has removed it";
  EXPECT_FALSE(MirrorDirectory::adopt(path).ok());
  const std::string left = root + "/sgactor-1-0";
  std::filesystem::create_directory(left);
  {
    MirrorHold hold;
    hold.take(left);
    EXPECT_EQ(remove_stale_mirrors(root), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(left)) << "the last that held it has removed it";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace sgactor::apps
