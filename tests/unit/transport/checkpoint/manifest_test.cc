#include "transport/storage/manifest.h"

#include <gtest/gtest.h>

#include <functional>

namespace sgactor::transport {
namespace {

TensorRecord record(std::string name, TensorType type, std::vector<Hash128> chunks) {
  TensorRecord r;
  r.name = std::move(name);
  r.type = std::move(type);
  r.segment = "head";
  r.chunks = std::move(chunks);
  return r;
}

CheckpointInfo good() {
  CheckpointInfo info;
  info.step = 5;
  info.chunk_bytes = 16;
  info.tensors.push_back(record("a", {DType::kF32, {2, 5}}, {{1, 2}, {3, 4}, {5, 6}}));
  info.tensors.push_back(record("b", {DType::kI64, {}}, {{7, 8}}));
  return info;
}

TEST(Manifest, RoundTrips) {
  const std::string bytes = serialize_manifest(good());
  const auto info = parse_manifest(bytes, "m");
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(serialize_manifest(*info), bytes);
  EXPECT_EQ(info->tensors[0].type.to_string(), "f32[2, 5]");
  EXPECT_EQ(info->tensors[0].chunks[2].high, 6U);
}

struct Case {
  const char* says;
  std::function<void(CheckpointInfo&)> damage;
};

TEST(Manifest, RefusesWhatContradictsItself) {
  const std::vector<Case> cases = {
      {"step -1", [](CheckpointInfo& i) { i.step = -1; }},
      {"chunks of 0 bytes", [](CheckpointInfo& i) { i.chunk_bytes = 0; }},
      {"chunks of -16 bytes", [](CheckpointInfo& i) { i.chunk_bytes = -16; }},
      {"tensor a: is there twice",
       [](CheckpointInfo& i) { i.tensors[1].name = i.tensors[0].name; }},
      {"tensor a: 2 chunks, 3 expected", [](CheckpointInfo& i) { i.tensors[0].chunks.pop_back(); }},
      {"impossible shape",
       [](CheckpointInfo& i) {
         i.tensors[0].type.shape = {-1, 4};
       }},
      {"impossible shape",
       [](CheckpointInfo& i) {
         i.tensors[0].type.shape = {int64_t{1} << 32, int64_t{1} << 32};
       }},
      {"impossible shape",
       [](CheckpointInfo& i) {
         i.tensors[0].type.shape = {int64_t{1} << 62, int64_t{1} << 62, 0};
       }},
  };
  for (const Case& c : cases) {
    CheckpointInfo info = good();
    c.damage(info);
    const Status status = parse_manifest(serialize_manifest(info), "m").status();
    EXPECT_EQ(status.code(), Code::kCorruption) << c.says;
    EXPECT_EQ(status.message().rfind("m: ", 0), 0U);
    EXPECT_NE(status.message().find(c.says), std::string::npos) << status.message();
  }
}

TEST(Manifest, CutBytesAreRefused) {
  const std::string bytes = serialize_manifest(good());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(parse_manifest(std::string_view(bytes).substr(0, size), "m").status().code(),
              Code::kCorruption)
        << size;
}

}  // namespace
}  // namespace sgactor::transport
