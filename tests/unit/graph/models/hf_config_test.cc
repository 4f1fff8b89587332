#include "graph/models/llama.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sgactor::graph {
namespace {

/// A complete config with `key` set to `value` (JSON text), or left out if `value` is empty.
std::string config_with(const std::string& key, const std::string& value) {
  std::vector<std::pair<std::string, std::string>> keys = {
      {"model_type", "\"llama\""},  {"vocab_size", "512"},
      {"hidden_size", "64"},        {"intermediate_size", "128"},
      {"num_hidden_layers", "2"},   {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"}, {"max_position_embeddings", "1024"}};
  std::string text;
  bool found = false;
  for (auto& [k, v] : keys) {
    if (k == key) {
      v = value;
      found = true;
    }
  }
  if (!found) keys.emplace_back(key, value);
  for (const auto& [k, v] : keys) {
    if (!v.empty()) text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", k, v);
  }
  return "{" + text + "}";
}

void expect_refused(const std::string& json, const std::string& part) {
  const auto parsed = parse_hf_config(json, "config.json");
  ASSERT_FALSE(parsed.ok()) << json;
  EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << json;
  EXPECT_TRUE(parsed.status().message().starts_with("config.json")) << parsed.status().message();
  EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
}

TEST(HfConfig, ReadsWhatTransformersLeavesOut) {
  const auto c = parse_hf_config(config_with("num_key_value_heads", ""), "config.json");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->num_key_value_heads, 4);
  EXPECT_EQ(c->head_dim, 16);
  EXPECT_EQ(c->rms_norm_eps, 1e-6);
  EXPECT_EQ(c->rope_theta, 10000);
  EXPECT_FALSE(c->tie_word_embeddings);
  EXPECT_FALSE(c->attention_bias);
  EXPECT_EQ(c->rope_scaling.kind, RopeScaling::Kind::kNone);
}

TEST(HfConfig, PresetsRoundTrip) {
  for (const std::string& name : llama_preset_names()) {
    const LlamaConfig preset = *llama_preset(name);
    const auto read = parse_hf_config(to_hf_config(preset), name);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(*read, preset) << name;
  }
  EXPECT_FALSE(llama_preset("llama-3b").has_value());
}

TEST(HfConfig, FamilyMembersRoundTrip) {
  for (const char* type : {"llama", "mistral", "qwen2"}) {
    LlamaConfig c = *llama_preset("llama-tiny");
    c.model_type = type;
    c.attention_bias = c.model_type == "qwen2";
    c.rope_scaling = {RopeScaling::Kind::kLinear, 2, 1, 4, 8192};
    const auto read = parse_hf_config(to_hf_config(c), type);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(*read, c) << type;
  }
}

TEST(HfConfig, BiasFollowsTheFamily) {
  auto c = parse_hf_config(config_with("attention_bias", "true"), "config.json");
  ASSERT_TRUE(c.ok());
  EXPECT_TRUE(c->attention_bias && c->attention_output_bias);
  c = parse_hf_config(config_with("model_type", "\"qwen2\""), "config.json");
  ASSERT_TRUE(c.ok());
  EXPECT_TRUE(c->attention_bias);
  EXPECT_FALSE(c->attention_output_bias);
}

TEST(HfConfig, SlidingWindowRefusedOnlyWhereInUse) {
  const auto mistral = [](const std::string& window) {
    std::string text = config_with("sliding_window", window);
    return text.replace(text.find("\"llama\""), 7, "\"mistral\"");
  };
  EXPECT_TRUE(parse_hf_config(mistral("null"), "config.json").ok());
  EXPECT_TRUE(parse_hf_config(mistral("1024"), "config.json").ok());
  expect_refused(mistral("1023"), "sliding_window");
  EXPECT_TRUE(parse_hf_config(mistral(""), "config.json").ok()) << "4096 covers 1024 positions";
  const auto qwen = [](const std::string& use) {
    std::string text = config_with("use_sliding_window", use);
    text.insert(1, "\"sliding_window\": 16, ");
    return text.replace(text.find("\"llama\""), 7, "\"qwen2\"");
  };
  EXPECT_TRUE(parse_hf_config(qwen("false"), "config.json").ok());
  expect_refused(qwen("true"), "use_sliding_window");
}

TEST(HfConfig, RopeScalingInBothSpellings) {
  const std::string inner =
      R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512)";
  for (const std::string& text :
       {config_with("rope_scaling", "{\"rope_type\": \"llama3\", " + inner + "}"),
        config_with("rope_scaling", "{\"type\": \"llama3\", " + inner + "}"),
        config_with("rope_parameters",
                    "{\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", " + inner + "}")}) {
    const auto c = parse_hf_config(text, "config.json");
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    EXPECT_EQ(c->rope_scaling, (RopeScaling{RopeScaling::Kind::kLlama3, 8, 1, 4, 512}));
    const bool inside = text.find("rope_parameters") != std::string::npos;
    EXPECT_EQ(c->rope_theta, inside ? 500000 : 10000);
  }
}

TEST(HfConfig, RefusesWithTheKey) {
  struct Case {
    const char* key;
    const char* value;
    const char* part;
  };
  const std::vector<Case> cases = {
      {"model_type", "\"gpt2\"", "\"model_type\": expected llama, mistral or qwen2"},
      {"model_type", "", "model_type"},
      {"vocab_size", "", "\"vocab_size\": missing"},
      {"vocab_size", "\"512\"", "expected an integer, found string"},
      {"vocab_size", "1e3", "\"vocab_size\""},
      {"vocab_size", "0", "\"vocab_size\": expected 1 to"},
      {"vocab_size", "18446744073709551615", "\"vocab_size\""},
      {"hidden_size", "-64", "\"hidden_size\""},
      {"hidden_size", "66", "\"num_attention_heads\": 4 heads do not divide hidden_size 66"},
      {"num_attention_heads", "0", "\"num_attention_heads\""},
      {"num_key_value_heads", "3", "\"num_key_value_heads\": 3 does not divide"},
      {"num_hidden_layers", "9223372036854775807", "\"num_hidden_layers\""},
      {"head_dim", "7", "\"head_dim\": expected an even number"},
      {"hidden_act", "\"gelu\"", "\"hidden_act\": expected \"silu\""},
      {"mlp_bias", "true", "mlp_bias"},
      {"attention_dropout", "0.1", "attention_dropout"},
      {"partial_rotary_factor", "0.5", "partial_rotary_factor"},
      {"quantization_config", "{\"bits\": 4}", "quantization_config"},
      {"tie_word_embeddings", "1", "\"tie_word_embeddings\": expected true or false"},
      {"rms_norm_eps", "0", "rms_norm_eps"},
      {"rope_theta", "-1", "rope_theta"},
      {"rope_scaling", "[1]", "\"rope_scaling\": expected an object"},
      {"rope_scaling", "{\"rope_type\": \"yarn\"}", "\"yarn\" is not known"},
      {"rope_scaling", "{\"rope_type\": \"linear\"}", "\"factor\": missing"},
      {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": -2}", "rope_scaling.factor"},
  };
  for (const Case& c : cases) expect_refused(config_with(c.key, c.value), c.part);
}

TEST(HfConfig, RefusesWhatIsNoObject) {
  for (const char* text :
       {"", "{", "[]", "null", "3", "{} {}", "\xff\xfe", "{\"model_type\": \"\xff\"}"}) {
    expect_refused(text, "config.json");
  }
  expect_refused(std::string(1 << 20, '['), "not JSON");
}

}  // namespace
}  // namespace sgactor::graph
