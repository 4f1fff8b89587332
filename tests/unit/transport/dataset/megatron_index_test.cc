#include "transport/storage/megatron_index.h"

#include "tests/unit/transport/dataset/megatron_files.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace sgactor::transport {
namespace {

Result<MegatronIndex> parse(const std::string& bytes, int64_t bin_bytes) {
  return parse_megatron_index(std::as_bytes(std::span(bytes)), bin_bytes, "X.idx");
}

TEST(MegatronIndex, JoinsWhatLiesTogether) {
  const auto index = parse(IndexFields::contiguous({3, 0, 4}, 8, 2).bytes(), 14);
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  EXPECT_EQ(index->num_tokens, 7);
  EXPECT_EQ(index->num_sequences, 3);
  EXPECT_EQ(index->num_documents, 3);
  ASSERT_EQ(index->runs.size(), 1U);
  EXPECT_EQ(index->runs[0].num_tokens, 7);
}

TEST(MegatronIndex, KeepsTheOrderOfSequencesNotOfBytes) {
  IndexFields fields = IndexFields::contiguous({2, 3}, 4, 4);
  fields.offsets = {12, 0};
  const auto index = parse(fields.bytes(), 20);
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  ASSERT_EQ(index->runs.size(), 2U);
  EXPECT_EQ(index->runs[0].offset_bytes, 12);
  EXPECT_EQ(index->runs[1].offset_bytes, 0);
  EXPECT_EQ(index->runs[1].first_token, 2);
}

TEST(MegatronIndex, OffsetsHave64Bits) {
  const int64_t far = int64_t{5} << 40;
  IndexFields fields = IndexFields::contiguous({2, 3}, 8, 2);
  fields.offsets[1] = far;
  EXPECT_TRUE(parse(fields.bytes(), far + 6).ok());
  EXPECT_FALSE(parse(fields.bytes(), far + 5).ok());
}

struct Case {
  const char* name;
  const char* says;
  std::function<void(IndexFields&)> damage;
};

TEST(MegatronIndex, RefusesWhatContradictsItself) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<Case> cases = {
      {"magic", "MMIDIDX", [](IndexFields& f) { f.magic[0] = 'N'; }},
      {"version", "version 2", [](IndexFields& f) { f.version = 2; }},
      {"float code", "code 6", [](IndexFields& f) { f.code = 6; }},
      {"code 0", "code 0", [](IndexFields& f) { f.code = 0; }},
      {"too many", "do not fill", [](IndexFields& f) { f.num_sequences = 4; }},
      {"wrapping count", "do not fill", [](IndexFields& f) { f.num_sequences = ~0ULL; }},
      {"product wraps", "do not fill", [](IndexFields& f) { f.num_sequences = 1ULL << 62; }},
      {"boundaries wrap", "do not fill", [](IndexFields& f) { f.num_boundaries = 1ULL << 61; }},
      {"negative length", "length -1", [](IndexFields& f) { f.lengths[1] = -1; }},
      {"long", "sequence 2", [](IndexFields& f) { f.lengths[2] = 5; }},
      {"longest", "ends past its .bin", [](IndexFields& f) { f.lengths[0] = 0x7FFFFFFF; }},
      {"negative offset", "starts at byte -2", [](IndexFields& f) { f.offsets[0] = -2; }},
      {"odd offset", "multiple of 2", [](IndexFields& f) { f.offsets[1] = 3; }},
      {"far offset", "ends past its .bin", [=](IndexFields& f) { f.offsets[1] = most - 1; }},
      {"first boundary", "document boundary 0", [](IndexFields& f) { f.boundaries[0] = 1; }},
      {"falling", "document boundary 2", [](IndexFields& f) { f.boundaries[2] = 0; }},
      {"past", "document boundary 3", [](IndexFields& f) { f.boundaries[3] = 4; }},
      {"short", "ends at sequence 2 of 3", [](IndexFields& f) { f.boundaries[3] = 2; }},
      {"no tokens", "no tokens",
       [](IndexFields& f) {
         f.lengths = {0, 0, 0};
       }},
      {"no documents", "last document",
       [](IndexFields& f) {
         f.boundaries.clear();
         f.num_boundaries = 0;
       }},
  };
  ASSERT_TRUE(parse(IndexFields::contiguous({3, 2, 4}, 8, 2).bytes(), 18).ok());
  for (const Case& c : cases) {
    IndexFields fields = IndexFields::contiguous({3, 2, 4}, 8, 2);
    c.damage(fields);
    const Status status = parse(fields.bytes(), 18).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.name;
    EXPECT_EQ(status.message().rfind("X.idx: ", 0), 0U) << status.message();
    EXPECT_NE(status.message().find(c.says), std::string::npos)
        << c.name << ": " << status.message();
  }
}

TEST(MegatronIndex, RefusesAFileCutOrLengthenedAnywhere) {
  const std::string bytes = IndexFields::contiguous({3, 2, 4}, 8, 2).bytes();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(parse(bytes.substr(0, size), 18).status().code(), Code::kInvalidArgument) << size;
  EXPECT_FALSE(parse(bytes + "x", 18).ok());
}

}  // namespace
}  // namespace sgactor::transport
