#pragma once
#include "graph/ir/graph.h"
#include "graph/ir/parameter.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::graph {

/// Rotary scaling of a Hugging Face config ("rope_scaling").
struct RopeScaling {
  enum class Kind : uint8_t { kNone = 0, kLinear, kLlama3 } kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position = 8192;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

/// Architecture of a Llama-family decoder: Llama 2/3, Mistral without sliding window, SmolLM2,
/// Qwen2 (q/k/v bias). Field names follow Hugging Face's config.json.
struct LlamaConfig {
  std::string model_type = "llama";  ///< llama, mistral, qwen2
  int64_t vocab_size = 256;
  int64_t hidden_size = 192;
  int64_t intermediate_size = 512;
  int64_t num_hidden_layers = 6;
  int64_t num_attention_heads = 6;
  int64_t num_key_value_heads = 6;
  int64_t head_dim = 32;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = true;
  bool attention_bias =
      false;  ///< biases on q, k, v (Qwen2); Llama's attention_bias also puts one on o
  bool attention_output_bias = false;
  double initializer_range = 0.02;
  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

/// Checks extents: positive and bounded (so that counts fit int64), heads that divide into groups,
/// an even head dim, finite positive numbers. Errors: kInvalidArgument naming the key.
Status validate_llama(const LlamaConfig& config);
/// Parses config.json. Keys that do not change the model are ignored. Errors: kInvalidArgument
/// naming `file` and key: not a Llama (model_type, hidden_act other than silu, a sliding window in
/// use, mlp_bias …), a missing or ill-typed key, heads that do not divide.
Result<LlamaConfig> parse_hf_config(std::string_view json, const std::string& file);
/// The config.json text that transformers reads back to the same model.
std::string to_hf_config(const LlamaConfig& config);
/// Preset by name: llama-tiny, llama-15m, llama-125m, llama-1b, llama-8b, llama-70b. nullopt if
/// there is none.
std::optional<LlamaConfig> llama_preset(std::string_view name);
std::vector<std::string> llama_preset_names();

/// All parameters in a fixed order (embedding, layers, norm, head).
std::vector<ParameterSpec> llama_parameters(const LlamaConfig& config);
int64_t count_parameters(const LlamaConfig& config);
/// Model FLOPs a token of forward and backward at sequence length `seq_len`: 6 * (parameters that
/// multiply: all matrices, the head once also when tied, not the embedding gather) + 6 * layers *
/// seq_len * heads * head_dim (causal attention at half).
double flops_per_token(const LlamaConfig& config, int64_t seq_len);

/// Forward graph of one micro-batch: inputs parameters (f32), tokens i32[B, T]; with `loss`, also
/// targets i32[B, T] and scalar "inv_valid_tokens", and output kLoss "loss" = summed cross entropy
/// * inv_valid_tokens; without, output kLogits "logits" f32[B, T, V]. Segments "embed", "layer.0"
/// …, "head". Primitive ops only. Errors: kInvalidArgument (validate_llama's; batch < 1; seq_len
/// outside [1, max_position_embeddings]).
struct ForwardOptions {
  int64_t batch = 1;
  int64_t seq_len = 128;
  bool loss = true;
};
Result<Graph> build_llama(const LlamaConfig& config, const ForwardOptions& options);

}  // namespace sgactor::graph
