#pragma once
#include <chrono>
#include <cstdint>

namespace sgactor::apps {

/// Milliseconds of the steady clock: for deadlines and lengths of time within one process.
inline int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Seconds of the machine's clock since 1970: for records that people and other processes read.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace sgactor::apps
