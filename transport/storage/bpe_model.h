#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sgactor::transport {

/// Vocabulary and merges of byte-pair encoding (Sennrich, Haddow, Birch, ACL 2016) over bytes.
/// Filled once, then immutable and thread-safe.
class BpeModel {
 public:
  /// False if the id or the text is taken. Pre: id >= 0.
  [[nodiscard]] bool add_token(std::string bytes, int32_t id);
  /// Merges of lower rank are done first. False if one of the three texts is no token.
  [[nodiscard]] bool add_merge(std::string_view left, std::string_view right, int32_t rank);
  void set_ignore_merges(bool ignore) { ignore_merges_ = ignore; }

  [[nodiscard]] std::optional<int32_t> find(std::string_view bytes) const;
  [[nodiscard]] int64_t num_ids() const { return static_cast<int64_t>(bytes_by_id_.size()); }
  /// Empty for an id that is no token.
  [[nodiscard]] std::string_view bytes(int32_t id) const;
  /// Appends the ids of one piece. O(n log n) in its length. Bytes that have no token are left out,
  /// as Hugging Face's tokenizers do without an unknown token (SmolLM2 has none for 21 bytes that
  /// no text in UTF-8 holds, or hardly any).
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  [[nodiscard]] const Merge* find_merge(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> ids_;
  std::vector<std::string> bytes_by_id_;
  std::unordered_map<uint64_t, Merge> merges_;  ///< by (left id, right id)
  std::array<int32_t, 256> byte_ids_ = [] {
    std::array<int32_t, 256> none{};
    none.fill(-1);
    return none;
  }();
  bool ignore_merges_ = false;
};

}  // namespace sgactor::transport
