#include "transport/storage/pretokenizer.h"

#include "transport/storage/unicode.h"

namespace sgactor::transport {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Matches one alternative after the other at a position, as a backtracking matcher would: the
/// first that matches wins, and each takes as much as it can.
class Scanner {
 public:
  Scanner(SplitPattern pattern, std::string_view text) : pattern_(pattern), text_(text) {}

  /// End of the piece that starts at `pos`.
  [[nodiscard]] size_t piece_end(size_t pos) const {
    if (const size_t end = contraction(pos); end != pos) return end;
    return pattern_ == SplitPattern::kGpt2 ? gpt2_piece(pos) : llama_piece(pos);
  }

 private:
  struct Char {
    uint32_t code = 0;
    CharClass cls = CharClass::kSpace;
    size_t end = 0;
  };

  /// Past the end: a space of no length, so that nothing but the end test sees it.
  [[nodiscard]] Char at(size_t pos) const {
    if (pos >= text_.size()) return {0, CharClass::kSpace, pos};
    const CodePoint point = decode_utf8(text_, pos);
    return {point.code, classify(point.code), pos + point.length};
  }

  static bool is_newline(uint32_t code) { return code == '\n' || code == '\r'; }

  [[nodiscard]] size_t skip_class(size_t pos, CharClass cls) const {
    while (pos < text_.size()) {
      const Char c = at(pos);
      if (c.cls != cls) break;
      pos = c.end;
    }
    return pos;
  }
  [[nodiscard]] size_t skip_newlines(size_t pos) const {
    while (pos < text_.size() && is_newline(static_cast<uint8_t>(text_[pos]))) ++pos;
    return pos;
  }

  /// 's 't 're 've 'm 'll 'd; case counts only for GPT-2. `pos` if there is none.
  [[nodiscard]] size_t contraction(size_t pos) const {
    if (text_[pos] != '\'') return pos;
    const Char first = at(pos + 1);
    const uint32_t a = fold(first.code);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return first.end;
    const Char second = at(first.end);
    const uint32_t b = fold(second.code);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
      return second.end;
    return pos;
  }
  [[nodiscard]] uint32_t fold(uint32_t code) const {
    if (pattern_ == SplitPattern::kGpt2) return code;
    if (code == 0x17F) return 's';  // long s: the only other letter that folds to one of these
    return code >= 'A' && code <= 'Z' ? code | 0x20 : code;
  }

  [[nodiscard]] size_t gpt2_piece(size_t pos) const {
    const Char first = at(pos);
    // ` ?\p{L}+`, ` ?\p{N}+`, ` ?[^\s\p{L}\p{N}]+`: a space joins what follows it.
    const size_t start = first.code == ' ' ? first.end : pos;
    if (const Char c = at(start); start < text_.size() && c.cls != CharClass::kSpace)
      return skip_class(c.end, c.cls);
    return space_piece(pos);
  }

  [[nodiscard]] size_t llama_piece(size_t pos) const {
    const Char first = at(pos);
    if (first.cls == CharClass::kLetter) return skip_class(first.end, CharClass::kLetter);
    if (first.cls == CharClass::kNumber) return number_piece(pos);
    if (const Char c = at(first.end); !is_newline(first.code) && c.cls == CharClass::kLetter)
      return skip_class(c.end, CharClass::kLetter);
    const size_t start = first.code == ' ' ? first.end : pos;
    if (at(start).cls == CharClass::kOther)
      return skip_newlines(skip_class(start, CharClass::kOther));
    // `\s*[\r\n]+`: through the last newline of this run of spaces.
    const size_t end = skip_class(pos, CharClass::kSpace);
    for (size_t i = end; i > pos; --i)
      if (is_newline(static_cast<uint8_t>(text_[i - 1]))) return i;
    return space_piece(pos);
  }

  [[nodiscard]] size_t number_piece(size_t pos) const {
    const int most = pattern_ == SplitPattern::kLlama3 ? 3 : 1;
    for (int i = 0; i < most && at(pos).cls == CharClass::kNumber; ++i) pos = at(pos).end;
    return pos;
  }

  /// `\s+(?!\S)|\s+`: the last space is left to what follows, unless it is the only one.
  [[nodiscard]] size_t space_piece(size_t pos) const {
    size_t last = pos;
    size_t end = pos;
    while (end < text_.size()) {
      const Char c = at(end);
      if (c.cls != CharClass::kSpace) return last > pos ? last : end;
      last = end;
      end = c.end;
    }
    return end;
  }

  SplitPattern pattern_;
  std::string_view text_;
};

}  // namespace

std::optional<SplitPattern> find_split_pattern(std::string_view regex) {
  if (regex == kGpt2Regex) return SplitPattern::kGpt2;
  if (regex == kLlama3Regex) return SplitPattern::kLlama3;
  if (regex == kQwen2Regex) return SplitPattern::kQwen2;
  return std::nullopt;
}

void split_by_pattern(SplitPattern pattern, std::string_view text,
                      std::vector<std::string_view>& pieces) {
  const Scanner scanner(pattern, text);
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = scanner.piece_end(pos);
    pieces.push_back(text.substr(pos, end - pos));
    pos = end;
  }
}

void split_digits(bool individual, std::string_view text, std::vector<std::string_view>& pieces) {
  size_t start = 0;
  bool in_number = false;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint point = decode_utf8(text, pos);
    const bool number = classify(point.code) == CharClass::kNumber;
    if (pos > start && (number != in_number || (number && individual))) {
      pieces.push_back(text.substr(start, pos - start));
      start = pos;
    }
    in_number = number;
    pos += point.length;
  }
  if (start < text.size()) pieces.push_back(text.substr(start));
}

}  // namespace sgactor::transport
