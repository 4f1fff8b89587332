#pragma once
#include "transport/storage/bpe_model.h"
#include "transport/storage/pretokenizer.h"
#include "transport/storage/tokenizer.h"
#include "transport/storage/unicode.h"

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace sgactor::transport {

/// Byte-level BPE as in GPT-2: text is cut at added tokens, normalized, cut into pieces, and each
/// piece is encoded by itself.
class ByteLevelBpe : public Tokenizer {
 public:
  /// Found in the text before anything else, the longest of those that start at a place.
  struct AddedToken {
    std::string text;  ///< not empty
    int32_t id = 0;
  };
  struct Digits {
    bool individual = false;
  };
  using SplitStep = std::variant<SplitPattern, Digits>;
  struct Parts {
    BpeModel model;  ///< has a token for every byte
    std::vector<AddedToken> added;
    std::optional<NfcNormalizer> nfc;
    std::vector<SplitStep> steps;  ///< each cuts the pieces of the one before
    int32_t end_of_text = -1;
    int32_t begin_of_text = -1;
  };

  explicit ByteLevelBpe(Parts parts);
  ByteLevelBpe(const ByteLevelBpe&) = delete;
  ByteLevelBpe& operator=(const ByteLevelBpe&) = delete;

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;
  [[nodiscard]] int64_t vocab_size() const override { return num_ids_; }
  [[nodiscard]] int32_t end_of_text() const override { return parts_.end_of_text; }
  [[nodiscard]] int32_t begin_of_text() const override { return parts_.begin_of_text; }

 private:
  [[nodiscard]] const AddedToken* added_at(std::string_view text) const;
  void encode_plain(std::string_view raw, std::vector<int32_t>& ids) const;

  Parts parts_;
  std::array<std::vector<const AddedToken*>, 256> added_by_byte_;  ///< by first byte
  std::unordered_map<int32_t, const AddedToken*> added_by_id_;
  int64_t num_ids_ = 0;
};

}  // namespace sgactor::transport
