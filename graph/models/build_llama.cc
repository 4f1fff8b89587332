// Shape letters: B batch, T sequence, D hidden size, H query heads, G key/value heads (groups),
// R = H/G query heads a group, K head dim, F intermediate size, V vocabulary.
#include "graph/ir/builder.h"
#include "graph/models/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace sgactor::graph {

namespace {

std::string_view scaling_name(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::kLinear:
      return "linear";
    case RopeScaling::Kind::kLlama3:
      return "llama3";
    case RopeScaling::Kind::kNone:
      break;
  }
  return "none";
}

class LlamaBuilder {
 public:
  LlamaBuilder(Graph& graph, const LlamaConfig& config, const ForwardOptions& options)
      : b_(graph), c_(config), o_(options) {}

  Status build();

 private:
  ValueId parameter(const std::string& name) const { return parameters_.at(name); }
  /// x_ND W^T (+ bias), N = B*T.
  ValueId project(ValueId x, const std::string& name, bool has_bias);
  void layer(int64_t index);
  ValueId attention(ValueId x_ND, const std::string& prefix);
  ValueId attend(ValueId q_BTHK, ValueId k_BTGK, ValueId v_BTGK);
  ValueId mlp(ValueId x_ND, const std::string& prefix);
  void head(ValueId targets_BT, ValueId inv_valid_tokens);

  Builder b_;
  const LlamaConfig& c_;
  const ForwardOptions& o_;
  std::map<std::string, ValueId> parameters_;
  ValueId h_BTD_ = kNoValue;  ///< the residual stream
};

ValueId LlamaBuilder::project(ValueId x, const std::string& name, bool has_bias) {
  const ValueId y = b_.matmul(x, parameter(name + ".weight"), false, true);
  return has_bias ? b_.add(y, parameter(name + ".bias")) : y;
}

ValueId LlamaBuilder::attend(ValueId q_BTHK, ValueId k_BTGK, ValueId v_BTGK) {
  const int64_t B = o_.batch, T = o_.seq_len, H = c_.num_attention_heads;
  const int64_t G = c_.num_key_value_heads, R = H / G, K = c_.head_dim;
  ValueId q = b_.reshape(q_BTHK, {B, T, G, R, K});
  q = b_.transpose(q, {0, 2, 3, 1, 4});
  q = b_.reshape(q, {B, G, R * T, K});
  const ValueId k = b_.transpose(k_BTGK, {0, 2, 1, 3});
  const ValueId v = b_.transpose(v_BTGK, {0, 2, 1, 3});
  ValueId s = b_.matmul(q, k, false, true);  // [B, G, R*T, T]
  s = b_.scale(s, 1.0 / std::sqrt(static_cast<double>(K)));
  s = b_.reshape(s, {B, G, R, T, T});
  s = b_.causal_mask(s, -std::numeric_limits<double>::infinity());
  s = b_.softmax(s);
  s = b_.reshape(s, {B, G, R * T, T});
  ValueId o = b_.matmul(s, v);
  o = b_.reshape(o, {B, G, R, T, K});
  o = b_.transpose(o, {0, 3, 1, 2, 4});
  return b_.reshape(o, {B * T, H * K});
}

ValueId LlamaBuilder::attention(ValueId x_ND, const std::string& prefix) {
  const int64_t B = o_.batch, T = o_.seq_len, K = c_.head_dim;
  const bool bias = c_.attention_bias;
  Attrs rope;
  rope.set("theta", c_.rope_theta);
  rope.set("head_dim", K);
  rope.set("seq_len", T);
  rope.set("scaling", std::string(scaling_name(c_.rope_scaling.kind)));
  rope.set("factor", c_.rope_scaling.factor);
  rope.set("low_freq_factor", c_.rope_scaling.low_freq_factor);
  rope.set("high_freq_factor", c_.rope_scaling.high_freq_factor);
  rope.set("original_max_position", c_.rope_scaling.original_max_position);
  rope.set("dtype", DType::kF32);
  const auto table = b_.op(OpKind::kRopeTable, {}, std::move(rope));
  if (!b_.status().ok()) return kNoValue;
  ValueId q = project(x_ND, prefix + "self_attn.q_proj", bias);
  ValueId k = project(x_ND, prefix + "self_attn.k_proj", bias);
  ValueId v = project(x_ND, prefix + "self_attn.v_proj", bias);
  q = b_.reshape(q, {B, T, c_.num_attention_heads, K});
  k = b_.reshape(k, {B, T, c_.num_key_value_heads, K});
  v = b_.reshape(v, {B, T, c_.num_key_value_heads, K});
  q = b_.rotate(q, table[0], table[1], false);
  k = b_.rotate(k, table[0], table[1], false);
  return project(attend(q, k, v), prefix + "self_attn.o_proj", c_.attention_output_bias);
}

ValueId LlamaBuilder::mlp(ValueId x_ND, const std::string& prefix) {
  const ValueId gate = project(x_ND, prefix + "mlp.gate_proj", false);
  const ValueId up = project(x_ND, prefix + "mlp.up_proj", false);
  return project(b_.mul(b_.silu(gate), up), prefix + "mlp.down_proj", false);
}

void LlamaBuilder::layer(int64_t index) {
  const int64_t B = o_.batch, T = o_.seq_len, D = c_.hidden_size;
  const std::string prefix = fmt::format("model.layers.{}.", index);
  b_.set_segment(fmt::format("layer.{}", index));
  const auto norm = [&](const char* name) {
    const ValueId y = b_.rms_norm(h_BTD_, parameter(prefix + name), c_.rms_norm_eps).first;
    return b_.reshape(y, {B * T, D});
  };
  const ValueId o = attention(norm("input_layernorm.weight"), prefix);
  h_BTD_ = b_.add(h_BTD_, b_.reshape(o, {B, T, D}));
  const ValueId d = mlp(norm("post_attention_layernorm.weight"), prefix);
  h_BTD_ = b_.add(h_BTD_, b_.reshape(d, {B, T, D}));
}

void LlamaBuilder::head(ValueId targets_BT, ValueId inv_valid_tokens) {
  const int64_t B = o_.batch, T = o_.seq_len;
  b_.set_segment("head");
  ValueId x = b_.rms_norm(h_BTD_, parameter("model.norm.weight"), c_.rms_norm_eps).first;
  x = b_.reshape(x, {B * T, c_.hidden_size});
  const char* weight = c_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  const ValueId logits = b_.matmul(x, parameter(weight), false, true);
  if (!o_.loss) {
    b_.output(b_.reshape(logits, {B, T, c_.vocab_size}), Role::kLogits, "logits");
    return;
  }
  const ValueId sum = b_.cross_entropy(logits, b_.reshape(targets_BT, {B * T})).first;
  b_.output(b_.mul(sum, inv_valid_tokens), Role::kLoss, "loss");
}

Status LlamaBuilder::build() {
  b_.set_phase(Phase::kForward);
  b_.set_segment("embed");
  for (ParameterSpec& p : llama_parameters(c_)) {
    const ValueId v = b_.input(p.type, Role::kParameter, p.name);
    parameters_.emplace(std::move(p.name), v);
  }
  const TensorType ids{DType::kI32, Shape{o_.batch, o_.seq_len}};
  const ValueId tokens = b_.input(ids, Role::kTokens, "tokens");
  ValueId targets = kNoValue;
  ValueId inv_valid_tokens = kNoValue;
  if (o_.loss) {
    targets = b_.input(ids, Role::kTargets, "targets");
    inv_valid_tokens = b_.input({DType::kF32, Shape{}}, Role::kScalar, "inv_valid_tokens");
  }
  h_BTD_ = b_.gather(parameter("model.embed_tokens.weight"), tokens);
  for (int64_t i = 0; i < c_.num_hidden_layers; ++i) layer(i);
  head(targets, inv_valid_tokens);
  return b_.status();
}

Status validate_options(const LlamaConfig& config, const ForwardOptions& options) {
  if (options.batch < 1 || options.batch > INT32_MAX) {
    return invalid_argument(fmt::format("batch {}: expected 1 to {}", options.batch, INT32_MAX));
  }
  if (options.seq_len < 1 || options.seq_len > config.max_position_embeddings) {
    return invalid_argument(
        fmt::format("sequence length {}: expected 1 to max_position_embeddings = {}",
                    options.seq_len, config.max_position_embeddings));
  }
  // The widest tensors are logits, hidden rows and attention scores; their bytes must fit int64,
  // in float64 too.
  const int64_t heads = config.num_attention_heads;
  const double widest =
      static_cast<double>(std::max({config.vocab_size, config.intermediate_size, config.hidden_size,
                                    heads * config.head_dim, heads * options.seq_len}));
  const double elements =
      static_cast<double>(options.batch) * static_cast<double>(options.seq_len) * widest;
  if (elements > 0x1p58) {
    return invalid_argument(fmt::format("batch {} x sequence length {}: tensors of {:.3g} elements",
                                        options.batch, options.seq_len, elements));
  }
  return {};
}

}  // namespace

Result<Graph> build_llama(const LlamaConfig& config, const ForwardOptions& options) {
  SGA_TRY(validate_llama(config));
  SGA_TRY(validate_options(config, options));
  Graph graph;
  graph.name = config.model_type;
  SGA_TRY(LlamaBuilder(graph, config, options).build());
  return graph;
}

}  // namespace sgactor::graph
