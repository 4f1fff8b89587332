#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sgactor {

std::string format_bytes(int64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  if (bytes < kMiB)
    return fmt::format("{:.2f} KiB", static_cast<double>(bytes) / static_cast<double>(kKiB));
  if (bytes < kGiB)
    return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

std::string format_count(double count) {
  static constexpr const char* kSuffix[] = {"", " k", " M", " B", " T", " P", " E"};
  int i = 0;
  while (std::abs(count) >= 999.995 && i < 6) {
    count /= 1000;
    ++i;
  }
  return i == 0 && count == std::floor(count) ? fmt::format("{:.0f}", count)
                                              : fmt::format("{:.2f}{}", count, kSuffix[i]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace sgactor
