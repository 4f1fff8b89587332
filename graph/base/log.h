#pragma once
#include <fmt/format.h>

#include <string_view>

namespace sgactor::log {

/// Façade over spdlog: one logger on standard error, level and file set once by main().
/// Thread-safe. Lines are lower case and say facts: log::warn("device {} has {} left", d,
/// format_bytes(n)).
enum class Level { kTrace, kDebug, kInfo, kWarn, kError, kOff };

struct Options {
  Level level = Level::kInfo;
  std::string_view file;  ///< empty: standard error only; else appended there too
};
void init(const Options& options);
void write(Level level, std::string_view line);
/// Lines of level warn or above since start or the last reset. A test that leaves one behind fails
/// unless it says so.
int64_t num_warnings();
void reset_warnings();

template <class... A>
void debug(fmt::format_string<A...> f, A&&... a) {
  write(Level::kDebug, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void info(fmt::format_string<A...> f, A&&... a) {
  write(Level::kInfo, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void warn(fmt::format_string<A...> f, A&&... a) {
  write(Level::kWarn, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void error(fmt::format_string<A...> f, A&&... a) {
  write(Level::kError, fmt::format(f, std::forward<A>(a)...));
}

}  // namespace sgactor::log
