#pragma once
#include <array>
#include <cstddef>
#include <span>

namespace sgactor::transport {

/// 32 bytes that all processes of a job share and nobody else knows.
using JobSecret = std::array<std::byte, 32>;
using Digest = std::array<std::byte, 32>;

/// A message authentication code (HMAC-SHA-256 in the product) and a source of random bytes.
/// Injected, because transport links no cryptography. Thread-safe.
class KeyedHash {
 public:
  virtual ~KeyedHash() = default;
  [[nodiscard]] virtual Digest hash(const JobSecret& key,
                                    std::span<const std::byte> message) const = 0;
  /// Unpredictable bytes for nonces.
  virtual void random(std::span<std::byte> out) const = 0;
};

}  // namespace sgactor::transport
