#include "apps/sgactor/printable.h"

#include <algorithm>

namespace sgactor::apps {
namespace {

int utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Length of the valid character at `text`'s start; 0 if there is none. Overlong forms, surrogates
/// and values above U+10FFFF are not valid (Unicode standard, table 3-7).
size_t valid_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const auto length = static_cast<size_t>(utf8_length(lead));
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  if (length < 3) return length;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                   (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

}  // namespace

size_t complete_utf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    if (is_continuation(text[at])) continue;
    const auto length = static_cast<size_t>(utf8_length(static_cast<unsigned char>(text[at])));
    return length > back ? at : text.size();
  }
  return text.size();
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = valid_character(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = valid_character(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool control =
        (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7f ||
        (length == 2 && lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    out += length == 0 || control ? "\xEF\xBF\xBD" : std::string(text.substr(0, length));
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string one_line(std::string_view text) {
  std::string out = printable(text);
  std::replace(out.begin(), out.end(), '\n', ' ');
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace sgactor::apps
