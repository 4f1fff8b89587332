#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::transport {

/// Text to token ids and back. Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of `text`; no begin or end token is added. Deterministic. Text that is not UTF-8 is taken
  /// byte by byte where the vocabulary has bytes.
  [[nodiscard]] virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Text of `ids`; special tokens give their name, ids outside the vocabulary give nothing. The
  /// result may end inside a UTF-8 sequence.
  [[nodiscard]] virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// One more than the largest id.
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  [[nodiscard]] virtual int32_t end_of_text() const = 0;  ///< -1 if there is none
  /// Token that a sequence of this vocabulary starts with; -1 if there is none.
  [[nodiscard]] virtual int32_t begin_of_text() const { return -1; }
};

/// "bytes" (256 ids), a SentencePiece `.model`, a Hugging Face `tokenizer.json` (byte-level BPE:
/// GPT-2, Llama 3, SmolLM2, Qwen2), or a directory that holds `tokenizer.json` or
/// `tokenizer.model`. Errors: kInvalidArgument naming the file and what is wrong; kUnsupported
/// naming the file and the part of a tokenizer.json that is not implemented.
Result<std::unique_ptr<Tokenizer>> create_tokenizer(const std::string& name_or_path);

}  // namespace sgactor::transport
