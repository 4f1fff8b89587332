#include "graph/base/hash.h"

#include <gtest/gtest.h>

#include <set>

namespace sgactor {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Values of the XXH3 specification for the empty input.
TEST(HashTest, KnownAnswers) {
  EXPECT_EQ(hash64(std::string_view()), 0x2d06800538d394c2ULL);
  EXPECT_EQ(hash128({}).hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(HashTest, TextAndBytesAgree) {
  EXPECT_EQ(hash64("tokens", 7), hash64(bytes_of("tokens"), 7));
  EXPECT_NE(hash64("tokens", 7), hash64("tokens", 8));
  EXPECT_NE(hash64("tokens"), hash64("token"));
}

TEST(HashTest, Hash128OrdersAndPrints) {
  const Hash128 a = hash128(bytes_of("a"));
  const Hash128 b = hash128(bytes_of("b"));
  EXPECT_NE(a, b);
  EXPECT_EQ(a, hash128(bytes_of("a")));
  EXPECT_EQ(a.hex().size(), 32U);
  EXPECT_EQ((Hash128{1, 2}).hex(), "00000000000000020000000000000001");
}

TEST(HashTest, MixDependsOnOrderAndState) {
  std::set<uint64_t> seen;
  for (uint64_t state = 0; state < 64; ++state) {
    for (uint64_t word = 0; word < 64; ++word) seen.insert(mix64(state, word));
  }
  EXPECT_EQ(seen.size(), 64U * 64U);
  EXPECT_NE(mix64(mix64(0, 1), 2), mix64(mix64(0, 2), 1));
}

TEST(HashTest, Hex) { EXPECT_EQ(hex64(0xdeadbeefULL), "00000000deadbeef"); }

}  // namespace
}  // namespace sgactor
