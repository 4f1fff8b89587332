#include "graph/models/llama.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace sgactor::graph {

namespace {

using Json = nlohmann::ordered_json;

/// Typed reads of one JSON object. The first error is kept and later reads return their default, so
/// that parsing reads as a list of keys and checks once.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string context)
      : object_(object), context_(std::move(context)) {}

  [[nodiscard]] const Status& status() const { return status_; }
  /// The member, or nullptr if it is absent or null.
  [[nodiscard]] const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  [[nodiscard]] bool contains(const char* key) const { return object_.contains(key); }
  void fail(const char* key, const std::string& why) {
    if (status_.ok())
      status_ = invalid_argument(fmt::format("{}: key \"{}\": {}", context_, key, why));
  }
  int64_t integer(const char* key) {
    const Json* v = find(key);
    if (v == nullptr) fail(key, "missing");
    return v == nullptr ? 0 : integer_of(key, *v);
  }
  int64_t integer_or(const char* key, int64_t fallback) {
    const Json* v = find(key);
    return v == nullptr ? fallback : integer_of(key, *v);
  }
  double number(const char* key) {
    if (find(key) == nullptr) fail(key, "missing");
    return number_or(key, 0);
  }
  double number_or(const char* key, double fallback) {
    const Json* v = find(key);
    if (v == nullptr) return fallback;
    if (!v->is_number()) {
      fail(key, fmt::format("expected a number, found {}", v->type_name()));
      return fallback;
    }
    return v->get<double>();
  }
  bool flag_or(const char* key, bool fallback) {
    const Json* v = find(key);
    if (v == nullptr) return fallback;
    if (!v->is_boolean()) {
      fail(key, fmt::format("expected true or false, found {}", v->type_name()));
      return fallback;
    }
    return v->get<bool>();
  }
  std::string text_or(const char* key, const std::string& fallback) {
    const Json* v = find(key);
    if (v == nullptr) return fallback;
    if (!v->is_string()) {
      fail(key, fmt::format("expected text, found {}", v->type_name()));
      return fallback;
    }
    return v->get<std::string>();
  }

 private:
  int64_t integer_of(const char* key, const Json& v) {
    const bool fits =
        v.is_number_unsigned() ? v.get<uint64_t>() <= uint64_t{INT64_MAX} : v.is_number_integer();
    if (!fits) {
      fail(key, fmt::format("expected an integer, found {}",
                            v.is_number() ? std::string("a number that is none")
                                          : std::string(v.type_name())));
      return 0;
    }
    return v.get<int64_t>();
  }

  const Json& object_;
  std::string context_;
  Status status_;
};

void parse_rope_scaling(ObjectReader& outer, const char* key, const Json& object,
                        const std::string& file, LlamaConfig& config) {
  if (!object.is_object()) {
    outer.fail(key, fmt::format("expected an object, found {}", object.type_name()));
    return;
  }
  ObjectReader r(object, fmt::format("{}: {}", file, key));
  // Older configs say "type", newer ones "rope_type".
  const std::string type = r.text_or("rope_type", r.text_or("type", "default"));
  RopeScaling s;
  if (type == "linear") {
    s.kind = RopeScaling::Kind::kLinear;
    s.factor = r.number("factor");
  } else if (type == "llama3") {
    s.kind = RopeScaling::Kind::kLlama3;
    s.factor = r.number("factor");
    s.low_freq_factor = r.number("low_freq_factor");
    s.high_freq_factor = r.number("high_freq_factor");
    s.original_max_position = r.integer("original_max_position_embeddings");
  } else if (type != "default") {
    outer.fail(key, fmt::format("rotary scaling \"{}\" is not known; expected default, linear or "
                                "llama3",
                                type));
  }
  config.rope_theta = r.number_or("rope_theta", config.rope_theta);
  if (!r.status().ok()) outer.fail(key, r.status().message());
  config.rope_scaling = s;
}

/// Refuses what would make another model than the one this folder builds.
void refuse_variants(ObjectReader& r, const std::string& model_type, int64_t max_position) {
  const std::string act = r.text_or("hidden_act", "silu");
  if (act != "silu") r.fail("hidden_act", fmt::format("expected \"silu\", found \"{}\"", act));
  if (r.flag_or("mlp_bias", false)) r.fail("mlp_bias", "a bias in the MLP is not supported");
  if (r.number_or("attention_dropout", 0) != 0) {
    r.fail("attention_dropout", "expected 0: dropout is not supported");
  }
  if (r.number_or("partial_rotary_factor", 1) != 1) {
    r.fail("partial_rotary_factor", "expected 1: a part of the head dim cannot be rotated alone");
  }
  if (r.find("quantization_config") != nullptr) {
    r.fail("quantization_config", "quantised weights are not supported");
  }
  // Qwen2 configs carry sliding_window also where it is off; Mistral's is on unless it is null or
  // covers every position. transformers takes 4096 where a Mistral config leaves it out.
  if (model_type == "qwen2" && r.flag_or("use_sliding_window", false)) {
    r.fail("use_sliding_window", "a sliding window is not supported; expected false");
  }
  const bool is_null = r.contains("sliding_window") && r.find("sliding_window") == nullptr;
  if (model_type == "mistral" && !is_null) {
    const int64_t window = r.integer_or("sliding_window", 4096);
    if (window < max_position) {
      r.fail("sliding_window",
             fmt::format("a sliding window is not supported; expected null or at least "
                         "max_position_embeddings = {}, found {}",
                         max_position, window));
    }
  }
}

Result<LlamaConfig> read_config(const Json& root, const std::string& file) {
  if (!root.is_object()) {
    return invalid_argument(
        fmt::format("{}: expected a JSON object, found {}", file, root.type_name()));
  }
  ObjectReader r(root, file);
  LlamaConfig c;
  c.model_type = r.text_or("model_type", "");
  const bool known =
      c.model_type == "llama" || c.model_type == "mistral" || c.model_type == "qwen2";
  if (!known) {
    r.fail("model_type",
           fmt::format("expected llama, mistral or qwen2, found \"{}\"", c.model_type));
  }
  c.vocab_size = r.integer("vocab_size");
  c.hidden_size = r.integer("hidden_size");
  c.intermediate_size = r.integer("intermediate_size");
  c.num_hidden_layers = r.integer("num_hidden_layers");
  c.num_attention_heads = r.integer("num_attention_heads");
  c.num_key_value_heads = r.integer_or("num_key_value_heads", c.num_attention_heads);
  c.max_position_embeddings = r.integer_or("max_position_embeddings", 2048);
  c.rms_norm_eps = r.number_or("rms_norm_eps", 1e-6);
  c.rope_theta = r.number_or("rope_theta", 10000);
  c.initializer_range = r.number_or("initializer_range", 0.02);
  c.tie_word_embeddings = r.flag_or("tie_word_embeddings", false);
  if (const Json* head_dim = r.find("head_dim"); head_dim != nullptr) {
    c.head_dim = r.integer("head_dim");
  } else if (c.num_attention_heads > 0) {
    if (c.hidden_size % c.num_attention_heads != 0) {
      r.fail("num_attention_heads", fmt::format("{} heads do not divide hidden_size {}",
                                                c.num_attention_heads, c.hidden_size));
    }
    c.head_dim = c.hidden_size / c.num_attention_heads;
  }
  const bool bias = r.flag_or("attention_bias", false);
  if (bias && c.model_type == "mistral") r.fail("attention_bias", "expected false for mistral");
  c.attention_bias = bias || c.model_type == "qwen2";
  c.attention_output_bias = bias && c.model_type == "llama";
  // transformers 5 writes "rope_parameters" (with the theta inside), earlier ones "rope_scaling".
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const Json* rope = r.find(key); rope != nullptr) {
      parse_rope_scaling(r, key, *rope, file, c);
    }
  }
  refuse_variants(r, c.model_type, c.max_position_embeddings);
  SGA_TRY(r.status());
  if (Status s = validate_llama(c); !s.ok()) return s.with_context(file);
  return c;
}

std::string_view architecture(const std::string& model_type) {
  if (model_type == "mistral") return "MistralForCausalLM";
  if (model_type == "qwen2") return "Qwen2ForCausalLM";
  return "LlamaForCausalLM";
}

Status check_numbers(const LlamaConfig& c) {
  struct Number {
    const char* key;
    double value;
  };
  const std::array<Number, 6> positive = {
      {{"rms_norm_eps", c.rms_norm_eps},
       {"rope_theta", c.rope_theta},
       {"initializer_range", c.initializer_range},
       {"rope_scaling.factor", c.rope_scaling.factor},
       {"rope_scaling.low_freq_factor", c.rope_scaling.low_freq_factor},
       {"rope_scaling.high_freq_factor", c.rope_scaling.high_freq_factor}}};
  for (const Number& n : positive) {
    if (!std::isfinite(n.value) || n.value <= 0) {
      return invalid_argument(
          fmt::format("key \"{}\": expected a positive number, found {}", n.key, n.value));
    }
  }
  if (c.rope_scaling.high_freq_factor <= c.rope_scaling.low_freq_factor) {
    return invalid_argument(
        fmt::format("key \"rope_scaling.high_freq_factor\": {} is not above low_freq_factor {}",
                    c.rope_scaling.high_freq_factor, c.rope_scaling.low_freq_factor));
  }
  return {};
}

}  // namespace

Status validate_llama(const LlamaConfig& c) {
  struct Extent {
    const char* key;
    int64_t value;
    int64_t most;
  };
  // The bounds keep every product of extents that counts, shapes and offsets need inside int64.
  constexpr int64_t k1M = int64_t{1} << 20;
  const std::array<Extent, 9> extents = {
      {{"vocab_size", c.vocab_size, INT32_MAX},
       {"hidden_size", c.hidden_size, k1M},
       {"intermediate_size", c.intermediate_size, 4 * k1M},
       {"num_hidden_layers", c.num_hidden_layers, 16384},
       {"num_attention_heads", c.num_attention_heads, 65536},
       {"num_key_value_heads", c.num_key_value_heads, 65536},
       {"head_dim", c.head_dim, 65536},
       {"max_position_embeddings", c.max_position_embeddings, INT32_MAX},
       {"rope_scaling.original_max_position_embeddings", c.rope_scaling.original_max_position,
        INT32_MAX}}};
  for (const Extent& e : extents) {
    if (e.value < 1 || e.value > e.most) {
      return invalid_argument(
          fmt::format("key \"{}\": expected 1 to {}, found {}", e.key, e.most, e.value));
    }
  }
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return invalid_argument(
        fmt::format("key \"num_key_value_heads\": {} does not divide num_attention_heads {}",
                    c.num_key_value_heads, c.num_attention_heads));
  }
  if (c.head_dim % 2 != 0) {
    return invalid_argument(
        fmt::format("key \"head_dim\": expected an even number, found {}", c.head_dim));
  }
  if (c.num_attention_heads * c.head_dim > 4 * k1M) {
    return invalid_argument(fmt::format("key \"head_dim\": {} heads of {} are more than {}",
                                        c.num_attention_heads, c.head_dim, 4 * k1M));
  }
  return check_numbers(c);
}

Result<LlamaConfig> parse_hf_config(std::string_view json, const std::string& file) {
  try {
    return read_config(Json::parse(json), file);
  } catch (const std::exception& e) {
    return invalid_argument(fmt::format("{}: not JSON: {}", file, e.what()));
  }
}

std::string to_hf_config(const LlamaConfig& c) {
  Json j;
  j["architectures"] = Json::array({architecture(c.model_type)});
  j["model_type"] = c.model_type;
  j["vocab_size"] = c.vocab_size;
  j["hidden_size"] = c.hidden_size;
  j["intermediate_size"] = c.intermediate_size;
  j["num_hidden_layers"] = c.num_hidden_layers;
  j["num_attention_heads"] = c.num_attention_heads;
  j["num_key_value_heads"] = c.num_key_value_heads;
  j["head_dim"] = c.head_dim;
  j["hidden_act"] = "silu";
  j["max_position_embeddings"] = c.max_position_embeddings;
  j["rms_norm_eps"] = c.rms_norm_eps;
  j["rope_theta"] = c.rope_theta;
  j["rope_scaling"] = nullptr;
  if (c.rope_scaling.kind == RopeScaling::Kind::kLinear) {
    j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", c.rope_scaling.factor}};
  } else if (c.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
    j["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", c.rope_scaling.factor},
        {"low_freq_factor", c.rope_scaling.low_freq_factor},
        {"high_freq_factor", c.rope_scaling.high_freq_factor},
        {"original_max_position_embeddings", c.rope_scaling.original_max_position}};
  }
  j["tie_word_embeddings"] = c.tie_word_embeddings;
  // Qwen2's bias is part of its architecture, not a key.
  if (c.model_type == "llama") {
    j["attention_bias"] = c.attention_output_bias;
    j["mlp_bias"] = false;
  }
  if (c.model_type == "mistral") j["sliding_window"] = nullptr;
  if (c.model_type == "qwen2") j["use_sliding_window"] = false;
  j["initializer_range"] = c.initializer_range;
  j["torch_dtype"] = "float32";
  j["use_cache"] = true;
  return j.dump(2) + "\n";
}

}  // namespace sgactor::graph
