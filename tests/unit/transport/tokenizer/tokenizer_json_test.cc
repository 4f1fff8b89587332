// Damage to a tokenizer.json is refused in one line that names the file.
#include "transport/storage/tokenizer_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <functional>

namespace sgactor::transport {
namespace {

using Json = nlohmann::json;

const Json& good() {
  static const Json kGood =
      Json::parse(std::ifstream("tests/unit/transport/tokenizer/fixtures/llama3.json"));
  return kGood;
}

Status parse(const std::string& text) { return parse_tokenizer_json(text, "T.json").status(); }

struct Case {
  const char* name;
  Code code;
  const char* says;
  std::function<void(Json&)> damage;
};

TEST(TokenizerJson, TheFixtureIsGood) { EXPECT_TRUE(parse(good().dump()).ok()); }

// A vocabulary made by training may lack bytes that its text did not have (SmolLM2's lacks 21).
TEST(TokenizerJson, BytesWithoutATokenAreLeftOut) {
  Json json = good();
  json["model"]["vocab"].erase("\u0100");  // byte 0
  const auto whole = parse_tokenizer_json(good().dump(), "T.json");
  const auto lacking = parse_tokenizer_json(json.dump(), "T.json");
  ASSERT_TRUE(whole.ok() && lacking.ok()) << lacking.status().to_string();
  EXPECT_EQ((*lacking)->encode(std::string("a\0b", 3)), (*whole)->encode("ab"));
  EXPECT_TRUE((*lacking)->encode(std::string("\0", 1)).empty());
}

TEST(TokenizerJson, RefusesWhatContradictsItselfOrIsNotImplemented) {
  const std::vector<Case> cases = {
      {"no model", Code::kInvalidArgument, "has no \"model\"", [](Json& j) { j.erase("model"); }},
      {"model list", Code::kInvalidArgument, "has no \"model\"", [](Json& j) { j["model"] = {1}; }},
      {"unigram", Code::kUnsupported, "model type Unigram",
       [](Json& j) { j["model"]["type"] = "Unigram"; }},
      {"no vocab", Code::kInvalidArgument, "\"vocab\"", [](Json& j) { j["model"].erase("vocab"); }},
      {"negative id", Code::kInvalidArgument, "id -1",
       [](Json& j) { j["model"]["vocab"]["a"] = -1; }},
      {"huge id", Code::kInvalidArgument, "id 9007199254740993",
       [](Json& j) { j["model"]["vocab"]["a"] = 9007199254740993ULL; }},
      {"wrapping id", Code::kInvalidArgument, "18446744073709551615",
       [](Json& j) { j["model"]["vocab"]["a"] = ~0ULL; }},
      {"real id", Code::kInvalidArgument, "id 1.5",
       [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }},
      {"id twice", Code::kInvalidArgument, "given twice",
       [](Json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }},
      {"empty token", Code::kInvalidArgument, "is empty",
       [](Json& j) { j["model"]["vocab"][""] = 490; }},
      {"no merges", Code::kInvalidArgument, "\"merges\"",
       [](Json& j) { j["model"].erase("merges"); }},
      {"unknown merge", Code::kInvalidArgument, "merge 0",
       [](Json& j) {
         j["model"]["merges"][0] = {"a", "zzzz"};
       }},
      {"merge of one", Code::kInvalidArgument, "merge 2",
       [](Json& j) { j["model"]["merges"][2] = "ab"; }},
      {"merge number", Code::kInvalidArgument, "merge 1",
       [](Json& j) { j["model"]["merges"][1] = 7; }},
      {"byte fallback", Code::kUnsupported, "byte_fallback",
       [](Json& j) { j["model"]["byte_fallback"] = true; }},
      {"dropout", Code::kUnsupported, "dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"suffix", Code::kUnsupported, "end_of_word_suffix",
       [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"normalizer", Code::kUnsupported, "normalizer Lowercase",
       [](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       }},
      {"regex", Code::kUnsupported, "Split by 'x+'",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x+"; }},
      {"behavior", Code::kUnsupported, "MergedWithNext",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; }},
      {"no pre-tokenizer", Code::kUnsupported, "pre-tokenizer null",
       [](Json& j) { j["pre_tokenizer"] = nullptr; }},
      {"prefix space", Code::kUnsupported, "add_prefix_space",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }},
      {"lstrip", Code::kUnsupported, "lstrip",
       [](Json& j) { j["added_tokens"][0]["lstrip"] = true; }},
      {"added twice", Code::kInvalidArgument, "given twice",
       [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }},
      {"added id taken", Code::kInvalidArgument, "the id 5 of another",
       [](Json& j) { j["added_tokens"][1]["id"] = 5; }},
      {"added empty", Code::kInvalidArgument, "no content",
       [](Json& j) { j["added_tokens"][1]["content"] = ""; }},
  };
  for (const Case& c : cases) {
    Json damaged = good();
    c.damage(damaged);
    const Status status = parse(damaged.dump());
    EXPECT_EQ(status.code(), c.code) << c.name << ": " << status.message();
    EXPECT_EQ(status.message().rfind("T.json: ", 0), 0U) << c.name << ": " << status.message();
    EXPECT_NE(status.message().find(c.says), std::string::npos)
        << c.name << ": " << status.message();
  }
}

TEST(TokenizerJson, RefusesAFileCutAnywhere) {
  const std::string text = good().dump();
  for (size_t size = 0; size < text.size(); size += 1 + size / 40)
    EXPECT_EQ(parse(text.substr(0, size)).code(), Code::kInvalidArgument) << size;
  EXPECT_EQ(parse(text.substr(0, text.size() - 1)).code(), Code::kInvalidArgument);
}

TEST(TokenizerJson, DeepNestingIsNoStackOverflow) {
  EXPECT_EQ(parse(std::string(1 << 17, '[')).code(), Code::kInvalidArgument);
  const std::string deep = std::string(1 << 16, '[') + std::string(1 << 16, ']');
  EXPECT_FALSE(parse("{\"model\": " + deep + "}").ok());
}

}  // namespace
}  // namespace sgactor::transport
