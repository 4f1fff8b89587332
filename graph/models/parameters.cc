#include "graph/models/llama.h"

#include <cmath>

namespace sgactor::graph {

namespace {

class ParameterList {
 public:
  explicit ParameterList(const LlamaConfig& config) : c_(config) {}

  void matrix(std::string name, int64_t out, int64_t in, double std) {
    list_.push_back({std::move(name), {DType::kF32, Shape{out, in}}, true, std, false});
  }
  void norm(std::string name) {
    list_.push_back({std::move(name), {DType::kF32, Shape{c_.hidden_size}}, false, 0, true});
  }
  void bias(std::string name, int64_t size) {
    list_.push_back({std::move(name), {DType::kF32, Shape{size}}, false, 0, false});
  }
  void projection(const std::string& name, int64_t out, int64_t in, double std, bool has_bias) {
    matrix(name + ".weight", out, in, std);
    if (has_bias) bias(name + ".bias", out);
  }
  void layer(int64_t index);
  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  const LlamaConfig& c_;
  std::vector<ParameterSpec> list_;
};

void ParameterList::layer(int64_t index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int64_t q_size = c_.num_attention_heads * c_.head_dim;
  const int64_t kv_size = c_.num_key_value_heads * c_.head_dim;
  const double std = c_.initializer_range;
  // Projections that write to the residual stream start smaller, so that its variance does not grow
  // with depth (Radford et al., "Language models are unsupervised multitask learners", 2019, 2.3).
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(c_.num_hidden_layers));
  projection(prefix + "self_attn.q_proj", q_size, c_.hidden_size, std, c_.attention_bias);
  projection(prefix + "self_attn.k_proj", kv_size, c_.hidden_size, std, c_.attention_bias);
  projection(prefix + "self_attn.v_proj", kv_size, c_.hidden_size, std, c_.attention_bias);
  projection(prefix + "self_attn.o_proj", c_.hidden_size, q_size, residual_std,
             c_.attention_output_bias);
  projection(prefix + "mlp.gate_proj", c_.intermediate_size, c_.hidden_size, std, false);
  projection(prefix + "mlp.up_proj", c_.intermediate_size, c_.hidden_size, std, false);
  projection(prefix + "mlp.down_proj", c_.hidden_size, c_.intermediate_size, residual_std, false);
  norm(prefix + "input_layernorm.weight");
  norm(prefix + "post_attention_layernorm.weight");
}

/// Elements of the matrices of one layer.
int64_t layer_matrices(const LlamaConfig& c) {
  const int64_t attention =
      2 * c.hidden_size * c.head_dim * (c.num_attention_heads + c.num_key_value_heads);
  return attention + 3 * c.hidden_size * c.intermediate_size;
}

}  // namespace

std::vector<ParameterSpec> llama_parameters(const LlamaConfig& config) {
  ParameterList list(config);
  list.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size,
              config.initializer_range);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) list.layer(i);
  list.norm("model.norm.weight");
  if (!config.tie_word_embeddings) {
    list.matrix("lm_head.weight", config.vocab_size, config.hidden_size, config.initializer_range);
  }
  return list.take();
}

int64_t count_parameters(const LlamaConfig& config) {
  int64_t layer = layer_matrices(config) + 2 * config.hidden_size;
  if (config.attention_bias) {
    layer += config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads);
  }
  if (config.attention_output_bias) layer += config.hidden_size;
  const int64_t embedding = config.vocab_size * config.hidden_size;
  return embedding * (config.tie_word_embeddings ? 1 : 2) + config.num_hidden_layers * layer +
         config.hidden_size;
}

double flops_per_token(const LlamaConfig& config, int64_t seq_len) {
  const double matrices = static_cast<double>(config.num_hidden_layers * layer_matrices(config) +
                                              config.vocab_size * config.hidden_size);
  const double attention = static_cast<double>(config.num_hidden_layers) *
                           static_cast<double>(seq_len) *
                           static_cast<double>(config.num_attention_heads * config.head_dim);
  return 6 * matrices + 6 * attention;
}

}  // namespace sgactor::graph
