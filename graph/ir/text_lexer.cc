#include "graph/ir/text_lexer.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

// The C library's classification follows the locale; the language does not.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }
bool is_value_name(char c) { return is_word(c) || c == '.'; }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/// Length of the longest prefix of `text` whose characters satisfy `pred`.
template <class Pred>
size_t prefix(std::string_view text, Pred pred) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), pred) - text.begin());
}

/// Length of a number: digits, '.', letters, and a sign at the start or after 'e'.
size_t number_length(std::string_view text) {
  size_t n = text[0] == '-' ? 1 : 0;
  while (n < text.size()) {
    const bool exponent_sign =
        (text[n] == '-' || text[n] == '+') && n > 0 && (text[n - 1] == 'e' || text[n - 1] == 'E');
    if (!is_value_name(text[n]) && !exponent_sign) break;
    ++n;
  }
  return n;
}

}  // namespace

bool is_identifier(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && prefix(text, is_word) == text.size();
}

Status Lexer::error_at(size_t offset, std::string_view message) const {
  const std::string_view before = source_.substr(0, std::min(offset, source_.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start = before.rfind('\n') + 1;
  return invalid_argument(
      fmt::format("line {}, column {}: {}", line, before.size() - line_start + 1, message));
}

void Lexer::skip_blanks() {
  while (at_ < source_.size()) {
    const char c = source_[at_];
    if (c == '#') {
      at_ = std::min(source_.find('\n', at_), source_.size());
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++at_;
    } else {
      return;
    }
  }
}

Status Lexer::read_escape(std::string& bytes) {
  const std::string_view rest = source_.substr(at_);
  if (rest.size() >= 2 && (rest[1] == '"' || rest[1] == '\\')) {
    bytes += rest[1];
    at_ += 2;
    return {};
  }
  if (rest.size() >= 4 && rest[1] == 'x' && hex_digit(rest[2]) >= 0 && hex_digit(rest[3]) >= 0) {
    bytes += static_cast<char>(hex_digit(rest[2]) * 16 + hex_digit(rest[3]));
    at_ += 4;
    return {};
  }
  return error_at(at_, R"(expected \", \\ or \x and two hexadecimal digits)");
}

Status Lexer::read_string(Token& token) {
  token.kind = Token::Kind::kString;
  const size_t start = at_++;
  while (at_ < source_.size() && source_[at_] != '\n') {
    if (source_[at_] == '"') {
      ++at_;
      token.text = source_.substr(start, at_ - start);
      return {};
    }
    if (source_[at_] == '\\') {
      SGA_TRY(read_escape(token.unescaped));
    } else {
      token.unescaped += source_[at_++];
    }
  }
  return error_at(start, "string does not end on its line");
}

Status Lexer::next(Token& token) {
  skip_blanks();
  token = Token{};
  token.offset = at_;
  if (at_ == source_.size()) return {};
  const std::string_view rest = source_.substr(at_);
  size_t length = 1;
  if (rest[0] == '"') return read_string(token);
  if (rest[0] == '%') {
    const size_t name_length = prefix(rest.substr(1), is_value_name);
    if (name_length == 0) return error_at(at_, "expected a name after %");
    token.kind = Token::Kind::kValue;
    token.text = rest.substr(1, name_length);
    at_ += name_length + 1;
    return {};
  }
  if (is_letter(rest[0])) {
    token.kind = Token::Kind::kIdentifier;
    length = prefix(rest, is_word);
  } else if (is_digit(rest[0]) || rest[0] == '-') {
    token.kind = Token::Kind::kNumber;
    length = number_length(rest);
  } else if (std::string_view("{}()[],=:@").find(rest[0]) != std::string_view::npos) {
    token.kind = Token::Kind::kPunct;
  } else {
    return error_at(at_, "unexpected character");
  }
  token.text = rest.substr(0, length);
  at_ += length;
  return {};
}

}  // namespace sgactor::graph
