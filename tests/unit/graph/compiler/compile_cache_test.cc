#include "graph/compiler/compile_cache.h"

#include "graph/base/hash.h"
#include "graph/plan/serial.h"

#include <gtest/gtest.h>

namespace sgactor::graph {
namespace {

CacheEntry sample() {
  CompileOptions options;
  options.num_micro_batches = 2;
  options.precision = DType::kBF16;
  auto compiled = compile_training(*llama_preset("llama-tiny"), options);
  SGA_CHECK(compiled.ok(), compiled.status().to_string());
  return {std::move(*compiled), std::string("graph\0bytes", 11)};
}

TEST(CompileCacheTest, GivesBackWhatWasPut) {
  const CacheEntry entry = sample();
  const std::string bytes = encode_cache_entry("key", entry);
  const Result<CacheEntry> again = decode_cache_entry(bytes, "key");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(serialize_plan(again->compiled.plan), serialize_plan(entry.compiled.plan));
  EXPECT_EQ(again->graph_bytes, entry.graph_bytes);
  ASSERT_EQ(again->compiled.passes.size(), entry.compiled.passes.size());
  for (size_t i = 0; i < entry.compiled.passes.size(); ++i) {
    EXPECT_EQ(again->compiled.passes[i].name, entry.compiled.passes[i].name);
    EXPECT_EQ(again->compiled.passes[i].note, entry.compiled.passes[i].note);
    EXPECT_EQ(again->compiled.passes[i].details, entry.compiled.passes[i].details);
    EXPECT_EQ(again->compiled.passes[i].ms, entry.compiled.passes[i].ms);
    EXPECT_EQ(again->compiled.passes[i].ops_after, entry.compiled.passes[i].ops_after);
  }
  ASSERT_EQ(again->compiled.fusions.size(), entry.compiled.fusions.size());
  EXPECT_EQ(again->compiled.fusions[0].pattern, entry.compiled.fusions[0].pattern);
  EXPECT_EQ(encode_cache_entry("key", *again), bytes);
}

TEST(CompileCacheTest, AnotherKeyIsAnotherEntry) {
  const std::string bytes = encode_cache_entry("key", sample());
  EXPECT_EQ(decode_cache_entry(bytes, "other").status().code(), Code::kInvalidArgument);
  EXPECT_NE(cache_file_name("key"), cache_file_name("other"));
  EXPECT_EQ(cache_file_name("key"), cache_file_name("key"));
}

TEST(CompileCacheTest, AnyDamageIsFound) {
  const std::string bytes = encode_cache_entry("key", sample());
  for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 97) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_EQ(decode_cache_entry(flipped, "key").status().code(), Code::kCorruption) << at;
    EXPECT_EQ(decode_cache_entry(bytes.substr(0, at), "key").status().code(), Code::kCorruption);
  }
  EXPECT_EQ(decode_cache_entry(bytes + "x", "key").status().code(), Code::kCorruption);
}

/// `body` under a checksum that holds: what a writer with a fault, or an enemy, may leave.
std::string sealed(const std::string& body) {
  const Hash128 sum = hash128(std::as_bytes(std::span(body)));
  std::string out = "sgaplan1";
  for (uint64_t word : {sum.low, sum.high}) {
    for (int byte = 0; byte < 8; ++byte) out += static_cast<char>(word >> (8 * byte) & 0xff);
  }
  return out + body;
}

TEST(CompileCacheTest, WholeNonsenseIsRefused) {
  const std::string body = encode_cache_entry("key", sample()).substr(24);
  EXPECT_TRUE(decode_cache_entry(sealed(body), "key").ok());
  EXPECT_EQ(decode_cache_entry(sealed(body + "x"), "key").status().code(), Code::kCorruption);
  for (size_t size :
       {size_t{0}, size_t{7}, size_t{11}, size_t{40}, body.size() / 2, body.size() - 1}) {
    EXPECT_FALSE(decode_cache_entry(sealed(body.substr(0, size)), "key").ok()) << size;
  }
  // A length far beyond the end.
  std::string huge = body;
  huge.replace(11, 8, std::string(8, '\xff'));
  EXPECT_EQ(decode_cache_entry(sealed(huge), "key").status().code(), Code::kCorruption);
}

}  // namespace
}  // namespace sgactor::graph
