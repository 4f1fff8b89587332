#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::transport {

/// One code point of UTF-8 text. A byte that starts no well-formed sequence (overlong forms and
/// surrogates are none) stands for itself: length 1, code kInvalidByte + byte.
struct CodePoint {
  uint32_t code = 0;
  size_t length = 0;
};
inline constexpr uint32_t kInvalidByte = 0x110000;

/// Pre: pos < text.size().
CodePoint decode_utf8(std::string_view text, size_t pos);
/// Appends the bytes that decode_utf8 would read as `code`.
void append_utf8(uint32_t code, std::string& out);

/// The classes that tokenizers' patterns use: \p{L}, \p{N}, \s (White_Space) and the rest, by the
/// tables of Unicode 14.
enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };
CharClass classify(uint32_t code);

/// Normalization form C (Unicode Standard Annex 15). Immutable and thread-safe.
class NfcNormalizer {
 public:
  NfcNormalizer();
  /// Bytes that are not UTF-8 stay as they are.
  [[nodiscard]] std::string normalize(std::string_view text) const;

 private:
  struct Composition {
    uint32_t first;
    uint32_t second;
    uint32_t composed;
    auto operator<=>(const Composition&) const = default;
  };
  [[nodiscard]] uint32_t compose(uint32_t first, uint32_t second) const;  ///< 0 if they do not
  void compose_all(std::vector<uint32_t>& codes) const;

  std::vector<Composition> compositions_;  ///< sorted
};

}  // namespace sgactor::transport
