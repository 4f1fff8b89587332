#include "transport/storage/safetensors.h"

#include "tests/unit/transport/safetensors/temporary_directory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sgactor::transport {
namespace {

std::string length_bytes(uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof length};
}
/// A file of this header and so many zero bytes of data.
std::string file_bytes(const std::string& header, size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\0');
}
const char kOne[] = R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

void expect_refused(const std::string& bytes, const std::string& part) {
  const TemporaryDirectory dir;
  const std::string path = dir.write("bad.safetensors", bytes);
  const auto opened = SafetensorsFile::open(path);
  ASSERT_FALSE(opened.ok()) << part;
  EXPECT_EQ(opened.status().code(), Code::kInvalidArgument);
  const std::string message = opened.status().message();
  EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Safetensors, WrittenFileReadsBack) {
  const TemporaryDirectory dir;
  const std::vector<float> a = {1.5F, -2, 3, 4, 5, std::numeric_limits<float>::infinity()};
  const std::vector<int64_t> b = {7};
  const std::vector<uint8_t> c = {1, 2, 3};
  const std::vector<NamedTensor> tensors = {
      {"z.first", {DType::kF32, Shape{2, 3}}, std::as_bytes(std::span(a))},
      {"scalar", {DType::kI64, Shape{}}, std::as_bytes(std::span(b))},
      {"empty", {DType::kBF16, Shape{0, 4}}, {}},
      {"a \"quoted\" ü", {DType::kU8, Shape{3}}, std::as_bytes(std::span(c))}};
  ASSERT_TRUE(write_safetensors(dir.file("x.safetensors"), tensors).ok());
  const auto file = SafetensorsFile::open(dir.file("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  EXPECT_EQ((*file)->entries().size(), tensors.size());
  int64_t offset = 0;
  for (const NamedTensor& t : tensors) {
    const auto bytes = (*file)->tensor(t.name);
    ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
    EXPECT_EQ((*file)->entries().at(t.name).type, t.type);
    EXPECT_EQ((*file)->entries().at(t.name).offset, offset) << "tensors keep their order";
    EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(), t.bytes.begin(), t.bytes.end()));
    offset += t.type.bytes();
  }
  EXPECT_EQ((*file)->tensor("nobody").status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(dir.file("x.safetensors.tmp")));
}

TEST(Safetensors, WriterRefusesAndLeavesTheOldFile) {
  const TemporaryDirectory dir;
  const std::string path = dir.write("x.safetensors", "old");
  const std::vector<float> a(6);
  const auto bytes = std::as_bytes(std::span(a));
  const TensorType type{DType::kF32, Shape{2, 3}};
  EXPECT_FALSE(write_safetensors(path, {{"w", type, bytes}, {"w", type, bytes}}).ok());
  EXPECT_FALSE(write_safetensors(path, {{"w", {DType::kF32, Shape{7}}, bytes}}).ok());
  EXPECT_FALSE(write_safetensors(path, {{"\xff", type, bytes}}).ok());
  EXPECT_FALSE(write_safetensors(path, {{"__metadata__", type, bytes}}).ok());
  EXPECT_EQ(read_file(path), "old");
  const auto failed = write_safetensors(dir.file("no/such/dir"), {{"w", type, bytes}});
  EXPECT_NE(failed.message().find("no/such/dir"), std::string::npos) << failed.message();
}

TEST(Safetensors, HeaderMayEndInSpaces) {
  const TemporaryDirectory dir;
  EXPECT_TRUE(
      SafetensorsFile::open(dir.write("x", file_bytes(std::string(kOne) + "   ", 24))).ok());
  EXPECT_TRUE(SafetensorsFile::open(dir.write("y", file_bytes("{}", 0))).ok());
}

TEST(Safetensors, RefusesBadLengths) {
  expect_refused("", "too few");
  expect_refused("1234567", "too few");
  expect_refused(length_bytes(0) + kOne, "header of 0 bytes");
  expect_refused(length_bytes(100'000'001) + kOne, "expected 1 to 100000000");
  expect_refused(length_bytes(UINT64_MAX) + kOne, "header of 18446744073709551615 bytes");
  expect_refused(length_bytes(sizeof kOne) + std::string(kOne), "the file is cut");
}

TEST(Safetensors, RefusesEveryCut) {
  const std::string whole = file_bytes(kOne, 24);
  for (size_t n = 0; n < whole.size(); ++n) expect_refused(whole.substr(0, n), "");
  expect_refused(whole + "x", "1 trailing bytes");
}

TEST(Safetensors, RefusesHostileHeaders) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":)" + a + R"(},"b":{"dtype":"F32","shape":)" + b + "}}";
  };
  expect_refused(
      file_bytes(two(R"([4],"data_offsets":[0,16])", R"([4],"data_offsets":[8,24])"), 24),
      "tensor b: its range at byte 8 overlaps");
  expect_refused(file_bytes(two(R"([1],"data_offsets":[0,4])", R"([4],"data_offsets":[8,24])"), 24),
                 "tensor b: a hole of 4 bytes");
  expect_refused(file_bytes(kOne, 20), "tensor w: range [0, 24) is not inside the 20 bytes");
  expect_refused(file_bytes(R"({"w":{"dtype":"F32","shape":[5],"data_offsets":[0,24]}})", 24),
                 "tensor w: range of 24 bytes, but f32[5] has 20");
  expect_refused(
      file_bytes(R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"\u0077":3})", 4),
      "tensor w: the name appears twice");
  expect_refused(
      file_bytes(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                 0),
      "2^63");
  expect_refused(file_bytes(R"({"w":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}})", 1),
                 "tensor w: dtype X9: expected F64");
  expect_refused(file_bytes(R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
                 "tensor w: shape: expected an integer of at least 0");
  expect_refused(file_bytes(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1), "shape is missing");
  expect_refused(file_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
                 "data_offsets: expected [begin, end]");
  expect_refused(file_bytes(R"({"w":{"dtype":"U8","shape":[1],"x":0}})", 1), "unknown key x");
  expect_refused(file_bytes(R"({"w":3})", 0), "tensor w: expected an object");
  expect_refused(file_bytes(R"({"__metadata__":{"a":{}}})", 0), "__metadata__");
  expect_refused(file_bytes("[]", 0), "expected a JSON object");
  expect_refused(file_bytes("{\"a", 0), "not JSON at byte");
  expect_refused(file_bytes("{\"bad\nname\"", 0), "not JSON");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TemporaryDirectory dir;
  EXPECT_EQ(SafetensorsFile::open(dir.path()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::open(dir.file("none")).status().code(), Code::kInvalidArgument);
}

TEST(Safetensors, FuzzCorpus) {
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/fuzz/safetensors")) {
    const std::string bytes = read_file(entry.path().string());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++num_files;
  }
  EXPECT_GE(num_files, 20);
}

}  // namespace
}  // namespace sgactor::transport
