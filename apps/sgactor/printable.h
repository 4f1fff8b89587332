#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace sgactor::apps {

/// Replaces what is not UTF-8, and control characters but newline and tab, by U+FFFD, so that
/// bytes from a model or a file cannot drive a terminal.
std::string printable(std::string_view text);
/// printable(), with newlines as spaces and none at the end: for messages of one line.
std::string one_line(std::string_view text);
/// Whether `text` is UTF-8 from end to end.
bool is_utf8(std::string_view text);
/// Length of the longest head of `text` that does not end inside a UTF-8 character.
size_t complete_utf8(std::string_view text);

}  // namespace sgactor::apps
