#include "tests/unit/graph/passes/tiny_model.h"

#include "graph/base/philox.h"

namespace sgactor::graph {

LlamaConfig tiny_config(bool tied, bool grouped) {
  LlamaConfig c;
  c.vocab_size = 13;
  c.hidden_size = 8;
  c.intermediate_size = 12;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 4;
  c.num_key_value_heads = grouped ? 2 : 4;
  c.head_dim = 2;
  c.tie_word_embeddings = tied;
  return c;
}

Values random_state(const LlamaConfig& config, uint64_t seed) {
  Values state;
  uint64_t stream = 0;
  for (const ParameterSpec& spec : llama_parameters(config)) {
    const PhiloxStream random{seed, ++stream};
    std::vector<double>& values = state[spec.name];
    for (int64_t i = 0; i < spec.type.num_elements(); ++i) {
      values.push_back((spec.init_one ? 1 : 0) + 0.3 * random.normal(static_cast<uint64_t>(i)));
    }
  }
  state["step"] = {1};
  state["inv_valid_tokens"] = {0.1};
  return state;
}

Values random_batch(const LlamaConfig& config, const ForwardOptions& forward, uint64_t seed) {
  Values batch;
  const auto vocab = static_cast<uint64_t>(config.vocab_size);
  for (int64_t i = 0; i < forward.batch * forward.seq_len; ++i) {
    const auto index = static_cast<uint64_t>(i);
    batch["tokens"].push_back(static_cast<double>(PhiloxStream{seed, 1}.below(index, vocab)));
    batch["targets"].push_back(
        i % 5 == 3 ? -1 : static_cast<double>(PhiloxStream{seed, 2}.below(index, vocab)));
  }
  return batch;
}

}  // namespace sgactor::graph
