#include "graph/cluster/cluster_spec.h"

#include <gtest/gtest.h>

#include <string>

namespace sgactor::graph {
namespace {

TEST(ClusterSpecTest, TextFormRoundTrips) {
  const ClusterSpec cluster{
      {25e9, 1e-5},
      {{"node0",
        {4.5e11, 5e-6},
        {{"h200", int64_t{141} << 30, 9.89e14, 4e12}, {"cpu", 1, 0.1, 0.3}}},
       {"node1", {1.0 / 3, 0}, {{"cpu", (int64_t{1} << 53) - 1, 1e11, 1e10}}}}};
  const Result<ClusterSpec> parsed = parse_cluster(print_cluster(cluster));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, cluster);
}

TEST(ClusterSpecTest, CommentsAndBlankLinesAreSkipped) {
  const Result<ClusterSpec> parsed =
      parse_cluster("# two\n\nhost a 1e9 0 # fast\n  device cpu 1024 1e9 1e8\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->hosts.size(), 1U);
  EXPECT_EQ(parsed->hosts[0].devices[0].memory_bytes, 1024);
}

TEST(ClusterSpecTest, BadLinesAreNamed) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"host a 1 0\ndevice cpu 1 0 1\n", "line 2: \"0\" is no number above 0"},
      {"host a 1 -1\n", "line 1: \"-1\" is no number of at least 0"},
      {"host a nan 0\n", "line 1: \"nan\""},
      {"host a 1x 0\n", "line 1: \"1x\""},
      {"device cpu 1 1 1\n", "line 1: a device stands before any host"},
      {"host a 1 0\ndevice cpu 1e300 1 1\n", "line 2: 1e300 bytes are too many"},
      {"host a 1 0\nhost a 1 0\n", "line 2: host a is there twice"},
      {"host a 1\n", "line 1: \"host\" with 2 fields"},
      {"rack a\n", "line 1: \"rack\" with 1 fields"},
      {"host a 1 0\n", "no device"},
      {"", "no device"},
  };
  for (const auto& c : cases) {
    const Result<ClusterSpec> parsed = parse_cluster(c.text);
    ASSERT_FALSE(parsed.ok()) << c.text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(c.message), std::string::npos)
        << parsed.status().message();
  }
}

}  // namespace
}  // namespace sgactor::graph
