#include "transport/storage/tokenizer_json.h"

#include "transport/storage/byte_level_bpe.h"
#include "transport/storage/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

namespace sgactor::transport {
namespace {

using Json = nlohmann::json;

/// GPT-2 writes byte b as this character: itself where that is printable, else the next free one
/// from U+0100 on.
constexpr std::array<uint32_t, 256> make_byte_characters() {
  std::array<uint32_t, 256> codes{};
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    codes[b] = printable ? b : next++;
  }
  return codes;
}
constexpr std::array<uint32_t, 256> kByteCharacters = make_byte_characters();
constexpr uint32_t kLastByteCharacter = 0x143;

/// Bytes that a token of the vocabulary stands for; nothing if it has other characters.
std::optional<std::string> token_bytes(std::string_view token) {
  static constexpr std::array<int16_t, kLastByteCharacter + 1> kBytes = [] {
    std::array<int16_t, kLastByteCharacter + 1> bytes{};
    for (int16_t& b : bytes) b = -1;
    for (size_t b = 0; b < 256; ++b) bytes[kByteCharacters[b]] = static_cast<int16_t>(b);
    return bytes;
  }();
  std::string out;
  for (size_t pos = 0; pos < token.size();) {
    const CodePoint point = decode_utf8(token, pos);
    if (point.code > kLastByteCharacter || kBytes[point.code] < 0) return std::nullopt;
    out += static_cast<char>(kBytes[point.code]);
    pos += point.length;
  }
  return out;
}

/// Member of an object; null (a JSON null) if there is none or `object` is no object.
const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

std::string_view text_of(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>())
                           : std::string_view();
}

bool flag(const Json& object, const char* key, bool otherwise) {
  const Json& value = member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

class Parser {
 public:
  explicit Parser(std::string name) : name_(std::move(name)) {}

  Result<std::unique_ptr<Tokenizer>> parse(std::string_view text) {
    const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) return bad("is not JSON, or is cut");
    if (!root.is_object()) return bad("is not a JSON object");
    SGA_TRY(read_model(member(root, "model"), member(root, "added_tokens")));
    SGA_TRY(read_added(member(root, "added_tokens")));
    SGA_TRY(read_normalizer(member(root, "normalizer")));
    SGA_TRY(read_pre_tokenizer(member(root, "pre_tokenizer")));
    if (!byte_level_) return not_implemented("a pre-tokenizer without ByteLevel");
    find_special_tokens(member(root, "post_processor"));
    return std::unique_ptr<Tokenizer>(std::make_unique<ByteLevelBpe>(std::move(parts_)));
  }

 private:
  [[nodiscard]] Status bad(const std::string& what) const {
    return invalid_argument(name_ + ": " + what);
  }
  [[nodiscard]] Status not_implemented(const std::string& what) const {
    return unsupported(fmt::format("{}: {} is not implemented", name_, what));
  }

  /// Ids may have gaps, but not so large that a small file asks for much memory.
  Result<int32_t> read_id(const Json& value, std::string_view token) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= max_ids_)
      return bad(fmt::format("token '{}' has id {}, an integer from 0 to {} expected", token,
                             value.dump(), max_ids_ - 1));
    return value.get<int32_t>();
  }

  Status read_model(const Json& model, const Json& added) {
    if (!model.is_object()) return bad("has no \"model\"");
    if (const std::string_view type = text_of(member(model, "type"));
        type != "BPE" && !type.empty())
      return not_implemented(fmt::format("model type {}", type));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(member(model, key)).empty()) return not_implemented(key);
    if (flag(model, "byte_fallback", false))
      return not_implemented("byte_fallback (use the SentencePiece file tokenizer.model)");
    if (const Json& dropout = member(model, "dropout");
        dropout.is_number() && dropout.get<double>() != 0.0)
      return not_implemented("dropout");
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object() || vocab.empty()) return bad("model has no \"vocab\"");
    max_ids_ = static_cast<int64_t>(vocab.size() + added.size()) + (int64_t{1} << 16);
    for (const auto& [token, id_value] : vocab.items()) {
      SGA_ASSIGN(const int32_t id, read_id(id_value, token));
      // Tokens with other characters are added tokens that the vocabulary lists as well.
      const std::optional<std::string> bytes = token_bytes(token);
      if (!parts_.model.add_token(bytes.value_or(token), id))
        return bad(fmt::format("token '{}' is empty, or its id {} is given twice", token, id));
    }
    parts_.model.set_ignore_merges(flag(model, "ignore_merges", false));
    return read_merges(member(model, "merges"));
  }

  Status read_merges(const Json& merges) {
    if (!merges.is_array()) return bad("model has no \"merges\"");
    if (merges.size() > std::numeric_limits<int32_t>::max()) return bad("too many merges");
    for (size_t i = 0; i < merges.size(); ++i) {
      std::string_view left;
      std::string_view right;
      if (merges[i].is_string()) {  // "Ġ t"; newer files have ["Ġ", "t"]
        const std::string_view both = text_of(merges[i]);
        const size_t space = both.find(' ');
        if (space != std::string_view::npos) {
          left = both.substr(0, space);
          right = both.substr(space + 1);
        }
      } else if (merges[i].is_array() && merges[i].size() == 2) {
        left = text_of(merges[i][0]);
        right = text_of(merges[i][1]);
      }
      const std::optional<std::string> a = token_bytes(left);
      const std::optional<std::string> b = token_bytes(right);
      if (!a || !b || !parts_.model.add_merge(*a, *b, static_cast<int32_t>(i)))
        return bad(fmt::format("merge {} is not of two tokens into a third", i));
    }
    return {};
  }

  Status read_added(const Json& added) {
    if (added.is_null()) return {};
    if (!added.is_array()) return bad("\"added_tokens\" is not a list");
    std::unordered_set<std::string> texts;
    std::unordered_set<int32_t> ids;
    for (const Json& token : added) {
      const std::string text(text_of(member(token, "content")));
      if (text.empty()) return bad("an added token has no content");
      SGA_ASSIGN(const int32_t id, read_id(member(token, "id"), text));
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (flag(token, key, false))
          return not_implemented(fmt::format("{} of added token '{}'", key, text));
      const std::string_view taken = parts_.model.bytes(id);
      if (!taken.empty() && taken != text)
        return bad(fmt::format("added token '{}' has the id {} of another token", text, id));
      if (!texts.insert(text).second || !ids.insert(id).second)
        return bad(fmt::format("added token '{}' or its id {} is given twice", text, id));
      parts_.added.push_back({text, id});
    }
    return {};
  }

  Status read_normalizer(const Json& normalizer) {
    if (normalizer.is_null()) return {};
    const std::string_view type = text_of(member(normalizer, "type"));
    const Json& list = member(normalizer, "normalizers");
    if (type == "Sequence" && list.is_array()) {
      for (const Json& part : list) {
        if (text_of(member(part, "type")) == "Sequence")
          return not_implemented("a normalizer Sequence inside another");
        SGA_TRY(read_normalizer(part));
      }
      return {};
    }
    if (type != "NFC") return not_implemented(fmt::format("normalizer {}", type));
    if (!parts_.nfc) parts_.nfc.emplace();
    return {};
  }

  Status read_pre_tokenizer(const Json& pre) {
    const std::string_view type = text_of(member(pre, "type"));
    const Json& list = member(pre, "pretokenizers");
    if (type != "Sequence") return read_split(pre, type);
    if (!list.is_array()) return bad("pre-tokenizer Sequence has no list");
    for (const Json& part : list) SGA_TRY(read_split(part, text_of(member(part, "type"))));
    return {};
  }

  Status read_split(const Json& pre, std::string_view type) {
    // After it the pieces are characters that stand for bytes, which no other step would see right.
    if (byte_level_) return not_implemented("a pre-tokenizer after ByteLevel");
    if (parts_.steps.size() >= 8)
      return not_implemented("a chain of more than eight pre-tokenizers");
    if (type == "Digits") {
      parts_.steps.emplace_back(ByteLevelBpe::Digits{flag(pre, "individual_digits", false)});
    } else if (type == "Split") {
      const std::string_view regex = text_of(member(member(pre, "pattern"), "Regex"));
      const std::optional<SplitPattern> pattern = find_split_pattern(regex);
      const std::string_view behavior = text_of(member(pre, "behavior"));
      const bool invert = flag(pre, "invert", false);
      // The patterns match all text, so that both forms keep the matches as pieces.
      const bool keeps_matches =
          (behavior == "Isolated" && !invert) || (behavior == "Removed" && invert);
      if (!pattern || !keeps_matches)
        return not_implemented(fmt::format("pre-tokenizer Split by '{}' ({})", regex, behavior));
      parts_.steps.emplace_back(*pattern);
    } else if (type == "ByteLevel") {
      if (flag(pre, "add_prefix_space", true)) return not_implemented("add_prefix_space");
      if (flag(pre, "use_regex", true)) parts_.steps.emplace_back(SplitPattern::kGpt2);
      byte_level_ = true;
    } else {
      return not_implemented(fmt::format("pre-tokenizer {}", type.empty() ? "null" : type));
    }
    return {};
  }

  /// The file names a first token but no last one; the families' names for it are known.
  void find_special_tokens(const Json& post) {
    for (const char* name : {"<|end_of_text|>", "<|endoftext|>", "</s>"})
      if (parts_.end_of_text < 0) parts_.end_of_text = added_id(name);
    const auto read_template = [&](const Json& processor) {
      const Json& single = member(processor, "single");
      if (text_of(member(processor, "type")) != "TemplateProcessing" || !single.is_array() ||
          single.empty())
        return;
      parts_.begin_of_text = added_id(text_of(member(member(single[0], "SpecialToken"), "id")));
    };
    read_template(post);
    if (const Json& list = member(post, "processors"); list.is_array())
      for (const Json& processor : list) read_template(processor);
  }
  [[nodiscard]] int32_t added_id(std::string_view text) const {
    for (const ByteLevelBpe::AddedToken& token : parts_.added)
      if (token.text == text) return token.id;
    return -1;
  }

  std::string name_;
  ByteLevelBpe::Parts parts_;
  int64_t max_ids_ = 0;
  bool byte_level_ = false;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view json,
                                                        const std::string& name) {
  return Parser(name).parse(json);
}

}  // namespace sgactor::transport
