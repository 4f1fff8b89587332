#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sgactor {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

/// "1.50 GiB", "12 B"
std::string format_bytes(int64_t bytes);
/// "3.02 M", "70.55 B": short scale, for parameters, tokens and FLOPs.
std::string format_count(double count);
/// "1h 02m", "3m 05s", "12.3 s", "4.1 ms"
std::string format_seconds(double seconds);

/// Smallest multiple of `align` that is >= `value`. Pre: align > 0.
constexpr int64_t round_up(int64_t value, int64_t align) {
  return (value + align - 1) / align * align;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Edit distance with transpositions (optimal string alignment), for "did you mean".
int edit_distance(std::string_view a, std::string_view b);

}  // namespace sgactor
