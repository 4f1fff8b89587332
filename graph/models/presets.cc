#include "graph/models/llama.h"

#include <array>

namespace sgactor::graph {

namespace {

struct Preset {
  std::string_view name;
  LlamaConfig (*make)();
};

// About 3 M parameters over bytes. Four wide layers rather than more narrow ones: matmuls of a few
// hundred rows and columns keep two cores busy, and the loss falls as fast a token.
LlamaConfig tiny() {
  LlamaConfig c;
  c.vocab_size = 256;
  c.hidden_size = 256;
  c.intermediate_size = 704;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 4;
  c.head_dim = 64;
  return c;
}

LlamaConfig llama_15m() {
  LlamaConfig c;
  c.vocab_size = 32000;
  c.hidden_size = 288;
  c.intermediate_size = 768;
  c.num_hidden_layers = 6;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 6;
  c.head_dim = 48;
  return c;
}

LlamaConfig llama_125m() {
  LlamaConfig c;
  c.vocab_size = 32000;
  c.hidden_size = 768;
  c.intermediate_size = 2048;
  c.num_hidden_layers = 12;
  c.num_attention_heads = 12;
  c.num_key_value_heads = 12;
  c.head_dim = 64;
  return c;
}

LlamaConfig llama3(double rope_factor) {
  LlamaConfig c;
  c.vocab_size = 128256;
  c.num_key_value_heads = 8;
  c.head_dim = 128;
  c.max_position_embeddings = 131072;
  c.rope_theta = 500000;
  c.rope_scaling = {RopeScaling::Kind::kLlama3, rope_factor, 1, 4, 8192};
  c.tie_word_embeddings = false;
  return c;
}

// Llama-3.2-1B
LlamaConfig llama_1b() {
  LlamaConfig c = llama3(32);
  c.hidden_size = 2048;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 16;
  c.num_attention_heads = 32;
  c.head_dim = 64;
  c.tie_word_embeddings = true;
  return c;
}

// Llama-3.1-8B
LlamaConfig llama_8b() {
  LlamaConfig c = llama3(8);
  c.hidden_size = 4096;
  c.intermediate_size = 14336;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  return c;
}

// Llama-3.1-70B
LlamaConfig llama_70b() {
  LlamaConfig c = llama3(8);
  c.hidden_size = 8192;
  c.intermediate_size = 28672;
  c.num_hidden_layers = 80;
  c.num_attention_heads = 64;
  return c;
}

constexpr std::array<Preset, 6> kPresets = {{
    {"llama-tiny", tiny},
    {"llama-15m", llama_15m},
    {"llama-125m", llama_125m},
    {"llama-1b", llama_1b},
    {"llama-8b", llama_8b},
    {"llama-70b", llama_70b},
}};

}  // namespace

std::optional<LlamaConfig> llama_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.make();
  }
  return std::nullopt;
}

std::vector<std::string> llama_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

}  // namespace sgactor::graph
