// Every tokenizer against what the reference libraries made of the same strings
// (fixtures/make_fixtures.py).
#include "transport/storage/tokenizer.h"

#include "tests/unit/transport/safetensors/temporary_directory.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>

namespace sgactor::transport {
namespace {

const std::string kFixtures = "tests/unit/transport/tokenizer/fixtures/";

std::unique_ptr<Tokenizer> open(const std::string& name) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = create_tokenizer(kFixtures + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

class Vectors : public testing::TestWithParam<const char*> {};

TEST_P(Vectors, AgreeWithTheReferenceLibrary) {
  const std::string name = GetParam();
  const auto tokenizer = open(name + (name == "small" ? ".model" : ".json"));
  ASSERT_NE(tokenizer, nullptr);
  const auto vectors = nlohmann::json::parse(std::ifstream(kFixtures + "vectors.json"));
  const auto& texts = vectors["texts"];
  const auto& ids = vectors["ids"][name];
  ASSERT_GT(texts.size(), 300U);
  ASSERT_EQ(texts.size(), ids.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), ids[i].get<std::vector<int32_t>>()) << "text " << texts[i];
  }
}
INSTANTIATE_TEST_SUITE_P(All, Vectors,
                         testing::Values("gpt2", "smollm2", "llama3", "qwen2", "small"));

TEST(Tokenizer, DecodesWhatItEncoded) {
  const auto vectors = nlohmann::json::parse(std::ifstream(kFixtures + "vectors.json"));
  for (const char* name : {"gpt2.json", "smollm2.json", "llama3.json", "small.model"}) {
    const auto tokenizer = open(name);
    ASSERT_NE(tokenizer, nullptr);
    for (const auto& json : vectors["texts"]) {
      const auto text = json.get<std::string>();
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name << " " << json;
    }
  }
}

TEST(Tokenizer, TakesBytesThatAreNotUtf8) {
  std::string text = "ok \xff\xc0\x80 \xed\xa0\x80 caf\xc3";
  text += '\0';
  for (const char* name : {"gpt2.json", "smollm2.json", "llama3.json", "qwen2.json"}) {
    const auto tokenizer = open(name);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name;
  }
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto llama = open("llama3.json");
  ASSERT_NE(llama, nullptr);
  EXPECT_EQ(llama->begin_of_text(), 480);
  EXPECT_EQ(llama->end_of_text(), 481);
  EXPECT_EQ(llama->vocab_size(), 482);
  EXPECT_EQ(llama->encode("<|begin_of_text|>").front(), 480);
  const auto gpt2 = open("gpt2.json");
  ASSERT_NE(gpt2, nullptr);
  EXPECT_EQ(gpt2->begin_of_text(), -1);
  EXPECT_EQ(gpt2->end_of_text(), 0);
  EXPECT_EQ(gpt2->vocab_size(), 480);
  const auto small = open("small.model");
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(small->vocab_size(), 400);
  EXPECT_EQ(small->begin_of_text(), 1);
  EXPECT_EQ(small->end_of_text(), 2);
}

TEST(Tokenizer, IgnoresIdsOutsideTheVocabulary) {
  for (const char* name : {"gpt2.json", "small.model"}) {
    const auto tokenizer = open(name);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-1, 1 << 30, 480}), "") << name;
  }
}

TEST(Tokenizer, BytesAreTheirOwnIds) {
  const auto bytes = create_tokenizer("bytes");
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ((*bytes)->encode("a\xff"), (std::vector<int32_t>{97, 255}));
  EXPECT_EQ((*bytes)->decode(std::vector<int32_t>{104, 105, 256, -1}), "hi");
  EXPECT_EQ((*bytes)->vocab_size(), 256);
  EXPECT_EQ((*bytes)->end_of_text(), -1);
}

TEST(Tokenizer, FindsTheFileOfADirectory) {
  const TemporaryDirectory dir;
  const auto none = create_tokenizer(dir.path());
  EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
  EXPECT_NE(none.status().message().find("neither tokenizer.json nor tokenizer.model"),
            std::string::npos);
  dir.write("tokenizer.model", read_file(kFixtures + "small.model"));
  const auto model = create_tokenizer(dir.path());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ((*model)->vocab_size(), 400);
  dir.write("tokenizer.json", read_file(kFixtures + "gpt2.json"));
  const auto json = create_tokenizer(dir.path());
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ((*json)->vocab_size(), 480);
}

TEST(Tokenizer, RefusesFilesThatAreNoModelAndNamesThem) {
  const TemporaryDirectory dir;
  const std::string model = read_file(kFixtures + "small.model");
  for (const std::string& path :
       {dir.file("missing.model"), dir.file("missing.json"), dir.write("empty.model", ""),
        dir.write("cut.model", model.substr(0, model.size() / 2)), dir.write("empty.json", ""),
        dir.write("noise.model", "not a model at all")}) {
    const auto tokenizer = create_tokenizer(path);
    EXPECT_EQ(tokenizer.status().code(), Code::kInvalidArgument) << path;
    EXPECT_EQ(tokenizer.status().message().rfind(path, 0), 0U) << tokenizer.status().message();
  }
}

// One long piece: a quadratic merge loop would take minutes.
TEST(Tokenizer, LongPiecesTakeLittleTime) {
  const auto tokenizer = open("gpt2.json");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text(1 << 18, 'e');
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int32_t> ids = tokenizer->encode(text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  EXPECT_EQ(tokenizer->decode(ids), text);
}

}  // namespace
}  // namespace sgactor::transport
