#include "transport/storage/dataset.h"

#include "tests/unit/transport/dataset/megatron_files.h"
#include "tests/unit/transport/safetensors/temporary_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

namespace sgactor::transport {
namespace {

std::vector<int32_t> read(const TokenStream& stream, int64_t begin, int64_t n) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  stream.read(begin, out);
  return out;
}

DataSpec text_spec(const std::string& path, int64_t vocab = 256) {
  DataSpec spec;
  spec.kind = "text";
  spec.path = path;
  spec.tokenizer = "bytes";
  spec.vocab_size = vocab;
  return spec;
}

DataSpec megatron_spec(const std::string& prefix, int64_t vocab) {
  DataSpec spec;
  spec.kind = "megatron";
  spec.path = prefix;
  spec.vocab_size = vocab;
  return spec;
}

void expect_refused(const DataSpec& spec, const std::string& says) {
  const auto data = open_datasets(spec);
  EXPECT_EQ(data.status().code(), Code::kInvalidArgument);
  EXPECT_NE(data.status().message().find(says), std::string::npos) << data.status().message();
}

TEST(Dataset, TextAsBytes) {
  const TemporaryDirectory dir;
  const auto data = open_datasets(text_spec(dir.write("a.txt", "abc\xff\n")));
  ASSERT_TRUE(data.ok()) << data.status().to_string();
  EXPECT_EQ(data->train->num_tokens(), 5);
  EXPECT_EQ(data->train->max_token(), 255);
  EXPECT_EQ(read(*data->train, 1, 4), (std::vector<int32_t>{98, 99, 255, 10}));
  EXPECT_EQ(data->validation, nullptr);
}

TEST(Dataset, TextThroughATokenizer) {
  const std::string fixtures = "tests/unit/transport/tokenizer/fixtures/";
  for (const std::string model : {"small.model", "gpt2.json"}) {
    DataSpec spec = text_spec("apps/examples/data/README.md", 480);
    spec.tokenizer = fixtures + model;
    const auto data = open_datasets(spec);
    ASSERT_TRUE(data.ok()) << data.status().to_string();
    const auto tokenizer = create_tokenizer(spec.tokenizer);
    ASSERT_TRUE(tokenizer.ok());
    EXPECT_EQ((*tokenizer)->decode(read(*data->train, 0, data->train->num_tokens())),
              read_file(spec.path));
    spec.vocab_size = 100;
    expect_refused(spec, "is outside the vocabulary of 100");
  }
}

TEST(Dataset, TheExampleTextOpensInMilliseconds) {
  const auto start = std::chrono::steady_clock::now();
  DataSpec spec = text_spec("apps/examples/data/shakespeare.txt");
  spec.validation_fraction = 0.1;
  const auto data = open_datasets(spec);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(data.ok()) << data.status().to_string();
  EXPECT_LT(elapsed, std::chrono::milliseconds(500));  // loose: sanitizers, a busy machine
  EXPECT_EQ(data->train->num_tokens() + data->validation->num_tokens(), 1115394);
  EXPECT_EQ(data->validation->num_tokens(), 111539);
  EXPECT_LT(data->train->max_token(), 128);
}

TEST(Dataset, HoldsOutTheLastPart) {
  const TemporaryDirectory dir;
  DataSpec spec = text_spec(dir.write("a.txt", "0123456789"));
  spec.validation_fraction = 0.25;
  const auto data = open_datasets(spec);
  ASSERT_TRUE(data.ok()) << data.status().to_string();
  EXPECT_EQ(data->train->num_tokens(), 8);
  EXPECT_EQ(read(*data->validation, 0, 2), (std::vector<int32_t>{'8', '9'}));
}

TEST(Dataset, RefusesWhatCannotBeTrainedOn) {
  const TemporaryDirectory dir;
  expect_refused(text_spec(dir.file("none.txt")), dir.file("none.txt") + ": open: No such file");
  expect_refused(text_spec(dir.path()), dir.path() + ": is not a regular file");
  expect_refused(text_spec(dir.write("empty.txt", "")), "is empty");
  expect_refused(text_spec(dir.write("one.txt", "x")), "has 1 tokens to train on");
  const std::string text = dir.write("a.txt", "abcdefz");
  expect_refused(text_spec(text, 110), text + ": token 122 at position 6 is outside");
  expect_refused(text_spec(text, 0), "vocab_size is 0");
  DataSpec spec = text_spec(text);
  for (const double fraction : {-0.1, 1.0, std::nan("")}) {
    spec.validation_fraction = fraction;
    expect_refused(spec, "validation_fraction");
  }
  spec.validation_fraction = 0.2;
  expect_refused(spec, "holds out 1, at least 2");
  spec.validation_fraction = 0;
  spec.tokenizer = dir.file("none.model");
  expect_refused(spec, "none.model: no such file");
  spec.kind = "texts";
  expect_refused(spec, "data kind is 'texts'");
}

template <class T>
class MegatronTypes : public testing::Test {};

template <class T, uint8_t c>
struct Coded {
  using Type = T;
  static constexpr uint8_t kCode = c;
};
using Codes = testing::Types<Coded<uint8_t, 1>, Coded<int8_t, 2>, Coded<int16_t, 3>,
                             Coded<int32_t, 4>, Coded<int64_t, 5>, Coded<uint16_t, 8>>;
TYPED_TEST_SUITE(MegatronTypes, Codes);

TYPED_TEST(MegatronTypes, ReadsAcrossSequencesInOrder) {
  using T = typename TypeParam::Type;
  const TemporaryDirectory dir;
  std::vector<T> tokens(100);
  std::iota(tokens.begin(), tokens.end(), T{1});
  dir.write("d.bin", token_bytes_of(tokens));
  IndexFields fields = IndexFields::contiguous({10, 0, 30, 60}, TypeParam::kCode, sizeof(T));
  fields.offsets = {90 * sizeof(T), 0, 0, 30 * sizeof(T)};
  dir.write("d.idx", fields.bytes());
  const auto data = open_datasets(megatron_spec(dir.file("d"), 101));
  ASSERT_TRUE(data.ok()) << data.status().to_string();
  EXPECT_EQ(data->train->num_tokens(), 100);
  EXPECT_EQ(data->train->max_token(), 100);
  std::vector<int32_t> expected;
  for (int32_t t = 91; t <= 100; ++t) expected.push_back(t);
  for (int32_t t = 1; t <= 90; ++t) expected.push_back(t);
  EXPECT_EQ(read(*data->train, 0, 100), expected);
  for (int64_t begin = 0; begin < 100; ++begin)
    for (const int64_t n : {0, 1, 7, 50}) {
      if (begin + n > 100) continue;
      EXPECT_EQ(read(*data->train, begin, n),
                std::vector<int32_t>(expected.begin() + begin, expected.begin() + begin + n));
    }
}

TEST(Dataset, MegatronTokensBeyondTheVocabularyAreNamed) {
  const TemporaryDirectory dir;
  dir.write("d.idx", IndexFields::contiguous({2, 4}, 8, 2).bytes());
  dir.write("d.bin", token_bytes_of<uint16_t>({1, 2, 3, 4, 65535, 6}));
  expect_refused(megatron_spec(dir.file("d"), 65535),
                 dir.file("d.bin") + ": token 65535 at position 4 is outside");
  EXPECT_TRUE(open_datasets(megatron_spec(dir.file("d"), 65536)).ok());
  dir.write("n.idx", IndexFields::contiguous({2}, 4, 4).bytes());
  dir.write("n.bin", token_bytes_of<int32_t>({1, -7}));
  expect_refused(megatron_spec(dir.file("n"), 100), "token -7 at position 1 is outside");
  dir.write("w.idx", IndexFields::contiguous({2}, 5, 8).bytes());
  dir.write("w.bin", token_bytes_of<int64_t>({1, int64_t{1} << 40}));
  expect_refused(megatron_spec(dir.file("w"), 100), "token 1099511627776 at position 1");
}

TEST(Dataset, MegatronFilesMustFitEachOther) {
  const TemporaryDirectory dir;
  expect_refused(megatron_spec(dir.file("d"), 100), "d.idx: open: No such file");
  const std::string idx = IndexFields::contiguous({2, 4}, 8, 2).bytes();
  dir.write("d.idx", idx);
  expect_refused(megatron_spec(dir.file("d"), 100), "d.bin: open: No such file");
  dir.write("d.bin", "0123456789");
  expect_refused(megatron_spec(dir.file("d"), 100), "ends past its .bin of 10 bytes");
  dir.write("d.bin", "");
  expect_refused(megatron_spec(dir.file("d"), 100), "ends past its .bin of 0 bytes");
  dir.write("d.idx", "");
  expect_refused(megatron_spec(dir.file("d"), 100), "d.idx: has 0 bytes");
}

// A .bin larger than 4 GiB with holes: only its two ends are read.
TEST(Dataset, MegatronOffsetsBeyond4GiB) {
  const TemporaryDirectory dir;
  const int64_t far = int64_t{5} << 30;
  const std::string bin = dir.write("d.bin", token_bytes_of<uint16_t>({1, 2}));
  ASSERT_EQ(::truncate(bin.c_str(), far), 0);
  {
    std::ofstream out(bin, std::ios::binary | std::ios::app);
    out << token_bytes_of<uint16_t>({3, 4, 5});
    ASSERT_TRUE(out.good());
  }
  IndexFields fields = IndexFields::contiguous({2, 3}, 8, 2);
  fields.offsets[1] = far;
  dir.write("d.idx", fields.bytes());
  const auto data = open_datasets(megatron_spec(dir.file("d"), 10));
  ASSERT_TRUE(data.ok()) << data.status().to_string();
  EXPECT_EQ(read(*data->train, 0, 5), (std::vector<int32_t>{1, 2, 3, 4, 5}));
}

TEST(Dataset, MockIsAFunctionOfSeedAndPosition) {
  DataSpec spec;
  spec.kind = "mock";
  spec.vocab_size = 50;
  spec.seed = 3;
  spec.mock_tokens = int64_t{1} << 50;  // nothing is stored
  const auto data = open_datasets(spec);
  ASSERT_TRUE(data.ok()) << data.status().to_string();
  const std::vector<int32_t> all = read(*data->train, 1000, 200);
  const std::vector<int32_t> tail = read(*data->train, 1100, 100);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), all.begin() + 100));
  for (const int32_t token : all) EXPECT_TRUE(token >= 0 && token < 50);
  EXPECT_GT(std::set<int32_t>(all.begin(), all.end()).size(), 30U);
  spec.seed = 4;
  EXPECT_NE(read(*open_datasets(spec)->train, 1000, 200), all);
  spec.mock_tokens = 1;
  expect_refused(spec, "mock data: has 1 tokens");
  spec.mock_tokens = -5;
  expect_refused(spec, "mock data: has -5 tokens");
}

}  // namespace
}  // namespace sgactor::transport
