#pragma once
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string>

namespace sgactor::apps {

/// The bits of a loss, as files and pages show them: 8 hex digits.
inline std::string float_bits(float value) {
  return fmt::format("{:08x}", std::bit_cast<uint32_t>(value));
}

}  // namespace sgactor::apps
