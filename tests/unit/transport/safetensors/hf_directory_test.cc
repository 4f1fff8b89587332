#include "tests/unit/transport/safetensors/temporary_directory.h"
#include "transport/storage/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace sgactor::transport {
namespace {

struct Owned {
  std::string name;
  TensorType type;
  std::vector<float> values;
};

std::vector<Owned> some_tensors() {
  std::vector<Owned> all;
  for (int i = 0; i < 5; ++i) {
    Owned t{"layer." + std::to_string(i), {DType::kF32, Shape{2, i + 1}}, {}};
    for (int k = 0; k < 2 * (i + 1); ++k) t.values.push_back(static_cast<float>(100 * i + k) / 7);
    all.push_back(t);
  }
  return all;
}

std::vector<NamedTensor> view(const std::vector<Owned>& owned) {
  std::vector<NamedTensor> tensors;
  for (const Owned& t : owned)
    tensors.push_back({t.name, t.type, std::as_bytes(std::span(t.values))});
  return tensors;
}

void expect_holds(const HfDirectory& dir, const std::vector<Owned>& owned) {
  for (const Owned& t : owned) {
    std::vector<float> out(t.values.size());
    const Status s = dir.load(t.name, t.type, std::as_writable_bytes(std::span(out)));
    ASSERT_TRUE(s.ok()) << s.to_string();
    EXPECT_EQ(out, t.values);
  }
}

TEST(HfDirectory, OneFileRoundTrips) {
  const TemporaryDirectory dir;
  const auto owned = some_tensors();
  ASSERT_TRUE(write_hf_weights(dir.file("new/model"), view(owned)).ok());
  const auto opened = HfDirectory::open(dir.file("new/model"));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ((*opened)->names().size(), owned.size());
  EXPECT_EQ((*opened)->unread().size(), owned.size());
  expect_holds(**opened, owned);
  EXPECT_TRUE((*opened)->unread().empty());
}

TEST(HfDirectory, ShardsRoundTrip) {
  const TemporaryDirectory dir;
  const auto owned = some_tensors();
  ASSERT_TRUE(write_hf_weights(dir.path(), view(owned), 32).ok());
  EXPECT_FALSE(std::filesystem::exists(dir.file("model.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(dir.file("model-00001-of-00004.safetensors")));
  const auto opened = HfDirectory::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  expect_holds(**opened, owned);
}

TEST(HfDirectory, NothingIsOverwritten) {
  const TemporaryDirectory dir;
  const auto owned = some_tensors();
  ASSERT_TRUE(write_hf_weights(dir.path(), view(owned), 32).ok());
  const Status again = write_hf_weights(dir.path(), view(owned));
  EXPECT_EQ(again.code(), Code::kInvalidArgument);
  EXPECT_NE(again.message().find("already holds model.safetensors.index.json"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir.file("model.safetensors")));
}

TEST(HfDirectory, FailureLeavesNoShard) {
  const TemporaryDirectory dir;
  auto owned = some_tensors();
  owned.back().name = owned.front().name;
  EXPECT_FALSE(write_hf_weights(dir.path(), view(owned), 32).ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(HfDirectory, HalvesWiden) {
  const TemporaryDirectory dir;
  const std::vector<uint16_t> bf16 = {0x3FC0, 0xC000, 0x7F80, 0x0001};
  const std::vector<uint16_t> f16 = {0x3E00, 0xC000, 0x7C00, 0x0001};
  const TensorType wide{DType::kF32, Shape{4}};
  ASSERT_TRUE(write_hf_weights(dir.path(),
                               {{"bf16", {DType::kBF16, Shape{4}}, std::as_bytes(std::span(bf16))},
                                {"f16", {DType::kF16, Shape{4}}, std::as_bytes(std::span(f16))}})
                  .ok());
  const auto opened = HfDirectory::open(dir.path());
  ASSERT_TRUE(opened.ok());
  std::vector<float> out(4);
  const auto room = std::as_writable_bytes(std::span(out));
  ASSERT_TRUE((*opened)->load("bf16", wide, room).ok());
  EXPECT_EQ(out, (std::vector<float>{1.5F, -2, std::numeric_limits<float>::infinity(), 0x1p-133F}));
  ASSERT_TRUE((*opened)->load("f16", wide, room).ok());
  EXPECT_EQ(out, (std::vector<float>{1.5F, -2, std::numeric_limits<float>::infinity(), 0x1p-24F}));
  std::vector<uint16_t> same(4);
  ASSERT_TRUE((*opened)
                  ->load("f16", {DType::kF16, Shape{4}}, std::as_writable_bytes(std::span(same)))
                  .ok());
  EXPECT_EQ(same, f16);
}

TEST(HfDirectory, LoadNamesWhatIsWrong) {
  const TemporaryDirectory dir;
  const auto owned = some_tensors();
  ASSERT_TRUE(write_hf_weights(dir.path(), view(owned)).ok());
  const auto opened = HfDirectory::open(dir.path());
  ASSERT_TRUE(opened.ok());
  std::vector<float> out(2);
  const auto room = std::as_writable_bytes(std::span(out));
  const auto expect = [&](const std::string& name, const TensorType& type,
                          const std::string& part) {
    const Status s = (*opened)->load(name, type, room);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  expect("nobody", {DType::kF32, Shape{2}}, "tensor nobody: there is none");
  expect("layer.0", {DType::kF32, Shape{2}}, "tensor layer.0: expected f32[2], found f32[2, 1]");
  expect("layer.0", {DType::kBF16, Shape{2, 1}}, "expected bf16[2, 1], found f32[2, 1]");
}

TEST(HfDirectory, RefusesBadIndexes) {
  const auto owned = some_tensors();
  struct Case {
    const char* index;
    const char* part;
  };
  for (const Case& c : std::vector<Case>{
           {"", "not JSON"},
           {"[]", "weight_map"},
           {R"({"weight_map": []})", "weight_map"},
           {R"({"weight_map": {"a": 3}})", "tensor a: expected the name of a file"},
           {R"({"weight_map": {"a": "../x.safetensors"}})", "not a file of this directory"},
           {R"({"weight_map": {"a": "/etc/passwd"}})", "not a file of this directory"},
           {R"({"weight_map": {"a": "none.safetensors"}})", "none.safetensors"},
           {R"({"weight_map": {"a": "x.safetensors"}})", "tensor a: the index names it"},
           {R"({"weight_map": {"layer.0": "x.safetensors", "layer.0": "y.safetensors"}})",
            "\"layer.0\" appears twice"}}) {
    const TemporaryDirectory dir;
    ASSERT_TRUE(write_safetensors(dir.file("x.safetensors"), view(owned)).ok());
    dir.write("model.safetensors.index.json", c.index);
    const auto opened = HfDirectory::open(dir.path());
    ASSERT_FALSE(opened.ok()) << c.index;
    EXPECT_EQ(opened.status().code(), Code::kInvalidArgument);
    EXPECT_NE(opened.status().message().find(c.part), std::string::npos)
        << opened.status().message();
  }
  const TemporaryDirectory empty;
  EXPECT_EQ(HfDirectory::open(empty.path()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HfDirectory::open(empty.file("none")).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sgactor::transport
