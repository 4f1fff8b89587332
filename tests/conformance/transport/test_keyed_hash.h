#pragma once
#include "graph/base/hash.h"
#include "transport/core/keyed_hash.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace sgactor::transport {

/// Keyed, but no match for an adversary: enough to see that proofs are made and compared.
class TestKeyedHash final : public KeyedHash {
 public:
  [[nodiscard]] Digest hash(const JobSecret& key,
                            std::span<const std::byte> message) const override {
    std::vector<std::byte> all(key.begin(), key.end());
    all.insert(all.end(), message.begin(), message.end());
    Digest digest;
    for (uint64_t i = 0; i < 4; ++i) {
      const uint64_t word = hash64(std::span<const std::byte>(all), i + 1);
      std::memcpy(digest.data() + i * 8, &word, 8);
    }
    return digest;
  }
  void random(std::span<std::byte> out) const override {
    for (std::byte& b : out) b = static_cast<std::byte>(mix64(17, ++counter_));
  }

 private:
  mutable std::atomic<uint64_t> counter_{0};
};

}  // namespace sgactor::transport
