#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor {

/// XXH3 of 64 bits; not for adversaries. The same on every machine.
uint64_t hash64(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t hash64(std::string_view text, uint64_t seed = 0);

/// XXH3 of 128 bits: content addresses and checksums of stored chunks.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  [[nodiscard]] std::string hex() const;  ///< 32 lower-case digits, high word first
  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};
Hash128 hash128(std::span<const std::byte> bytes);

/// Order-dependent mixing of 64-bit words (splitmix64 finaliser over a running state).
constexpr uint64_t mix64(uint64_t state, uint64_t word) {
  uint64_t z = state + 0x9E3779B97F4A7C15ULL + (word * 0xD1342543DE82EF95ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// "%016x"
std::string hex64(uint64_t value);

}  // namespace sgactor
