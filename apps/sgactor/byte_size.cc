#include "apps/sgactor/byte_size.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace sgactor::apps {

std::optional<int64_t> parse_byte_size(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},      {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
  };
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit(at, static_cast<size_t>(end - at));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double bytes = std::floor(number * factor);
    if (!(bytes >= 1) || bytes > 0x1p62) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

}  // namespace sgactor::apps
