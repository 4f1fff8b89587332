#include "graph/models/llama.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace sgactor::graph {
namespace {

TEST(Parameters, CountsOfPublishedModels) {
  // Llama-3.2-1B, Llama-3.1-8B and Llama-3.1-70B as their safetensors files sum up.
  EXPECT_EQ(count_parameters(*llama_preset("llama-1b")), 1235814400);
  EXPECT_EQ(count_parameters(*llama_preset("llama-8b")), 8030261248);
  EXPECT_EQ(count_parameters(*llama_preset("llama-70b")), 70553706496);
}

TEST(Parameters, SmallPresetsAreAsLargeAsTheirNames) {
  EXPECT_NEAR(static_cast<double>(count_parameters(*llama_preset("llama-tiny"))), 3e6, 0.4e6);
  EXPECT_NEAR(static_cast<double>(count_parameters(*llama_preset("llama-15m"))), 15e6, 1e6);
  // 110 M with this vocabulary, tied.
  EXPECT_NEAR(static_cast<double>(count_parameters(*llama_preset("llama-125m"))), 110e6, 1e6);
}

TEST(Parameters, ListAddsUpToTheCount) {
  std::vector<LlamaConfig> configs;
  for (const std::string& name : llama_preset_names()) configs.push_back(*llama_preset(name));
  LlamaConfig biased = *llama_preset("llama-tiny");
  biased.attention_bias = biased.attention_output_bias = true;
  biased.num_key_value_heads = 2;
  configs.push_back(biased);
  biased.model_type = "qwen2";
  biased.attention_output_bias = false;
  configs.push_back(biased);
  for (const LlamaConfig& config : configs) {
    int64_t sum = 0;
    for (const ParameterSpec& p : llama_parameters(config)) sum += p.type.num_elements();
    EXPECT_EQ(sum, count_parameters(config));
  }
}

TEST(Parameters, NamesShapesAndStart) {
  LlamaConfig c = *llama_preset("llama-tiny");
  c.num_hidden_layers = 2;
  c.num_key_value_heads = 2;
  c.model_type = "qwen2";
  c.attention_bias = true;
  c.tie_word_embeddings = false;
  const auto list = llama_parameters(c);
  const auto find = [&](const std::string& name) {
    const auto it = std::find_if(list.begin(), list.end(),
                                 [&](const ParameterSpec& p) { return p.name == name; });
    EXPECT_NE(it, list.end()) << name;
    return it == list.end() ? ParameterSpec{} : *it;
  };
  EXPECT_EQ(list.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(list.back().name, "lm_head.weight");
  EXPECT_EQ(list.size(), 2U * 12 + 3);
  const auto k = find("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(k.type, (TensorType{DType::kF32, Shape{128, 256}}));
  EXPECT_TRUE(k.decays);
  EXPECT_EQ(k.init_std, 0.02);
  const auto bias = find("model.layers.1.self_attn.k_proj.bias");
  EXPECT_EQ(bias.type.shape, Shape{128});
  EXPECT_FALSE(bias.decays || bias.init_one);
  EXPECT_EQ(bias.init_std, 0);
  const auto norm = find("model.layers.0.post_attention_layernorm.weight");
  EXPECT_TRUE(norm.init_one);
  EXPECT_FALSE(norm.decays);
  for (const char* name :
       {"model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"}) {
    EXPECT_DOUBLE_EQ(find(name).init_std, 0.02 / std::sqrt(4.0)) << name;
  }
  EXPECT_EQ(find("model.layers.0.mlp.down_proj.weight").type.shape, (Shape{256, 704}));
}

TEST(Parameters, FlopsCountTheHeadOnceAlsoWhenTied) {
  LlamaConfig c = *llama_preset("llama-15m");
  const double tied = flops_per_token(c, 256);
  c.tie_word_embeddings = false;
  EXPECT_EQ(flops_per_token(c, 256), tied);
  const double norms = 288.0 * (2 * 6 + 1);
  c.tie_word_embeddings = true;
  const double matrices = static_cast<double>(count_parameters(c)) - norms;
  EXPECT_DOUBLE_EQ(tied, 6 * matrices + 6.0 * 6 * 256 * 288);
}

}  // namespace
}  // namespace sgactor::graph
