#include "apps/sgactor/net_address.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

TEST(NetAddress, ReadsWhatItWrites) {
  for (const char* text : {"127.0.0.1:0", "localhost:65535", "a-b.c_d:80", "[::1]:8080"}) {
    const auto address = parse_net_address(text);
    ASSERT_TRUE(address.ok()) << address.status().to_string();
    EXPECT_EQ(to_string(*address), text);
  }
  EXPECT_EQ(parse_net_address("[fe80::1%eth0]:7")->host, "fe80::1%eth0");
}

TEST(NetAddress, RefusesWhatIsNone) {
  for (const char* text : {"", ":", ":80", "host", "host:", "host:65536", "host:-1", "host:8x",
                           "::1:80", "[]:80", "[a]:80", "a b:80", "http://a:80", "a/b:80"}) {
    const auto address = parse_net_address(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(address.status().message(), std::string("expected HOST:PORT, got \"") + text + "\"");
  }
  const auto lines = parse_net_address("a\nb:80");
  EXPECT_EQ(lines.status().message(), "expected HOST:PORT, got \"a b:80\"");
}

}  // namespace
}  // namespace sgactor::apps
