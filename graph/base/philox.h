#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace sgactor {

/// Philox4x32-10, counter-based: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
/// 1, 2, 3", SC'11. Pure: four 32-bit words from (counter, key). No state, so any element can be
/// drawn by any thread in any order.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ULL * counter[0];
    const uint64_t p1 = 0xCD9E8D57ULL * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// A stream of random values named by (seed, stream): `stream` is a hash of what the numbers are
/// for (parameter name, or step/micro-batch/op). Element i depends on nothing else.
struct PhiloxStream {
  uint64_t seed = 0;
  uint64_t stream = 0;

  [[nodiscard]] constexpr std::array<uint32_t, 4> block(uint64_t index) const {
    return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  /// Uniform 64-bit integer number `i`.
  [[nodiscard]] constexpr uint64_t bits64(uint64_t i) const {
    const auto w = block(i / 2);
    return i % 2 == 0 ? (static_cast<uint64_t>(w[1]) << 32 | w[0])
                      : (static_cast<uint64_t>(w[3]) << 32 | w[2]);
  }
  /// Uniform in [0, 1) with 53 bits, number `i`.
  [[nodiscard]] constexpr double uniform(uint64_t i) const {
    return static_cast<double>(bits64(i) >> 11) * 0x1p-53;
  }
  /// Uniform integer in [0, n), number `i`; bias below 2^-64 * n. Pre: n > 0.
  [[nodiscard]] constexpr uint64_t below(uint64_t i, uint64_t n) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits64(i)) * n) >> 64);
  }
  /// Standard normal number `i` (Box-Muller; two uniforms a value, so that elements stay
  /// independent of each other).
  [[nodiscard]] double normal(uint64_t i) const {
    const auto w = block(i);
    const double u =
        (static_cast<double>((static_cast<uint64_t>(w[1]) << 32 | w[0]) >> 11) + 1.0) * 0x1p-53;
    const double v =
        static_cast<double>((static_cast<uint64_t>(w[3]) << 32 | w[2]) >> 11) * 0x1p-53;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
  }
};

}  // namespace sgactor
