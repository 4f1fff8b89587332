#pragma once
#include "transport/core/keyed_hash.h"

namespace sgactor::apps {

/// HMAC-SHA-256 and the system's random numbers, for the proof that data links give each other.
/// Stateless; any thread.
class FabricHash final : public transport::KeyedHash {
 public:
  transport::Digest hash(const transport::JobSecret& key,
                         std::span<const std::byte> message) const override;
  void random(std::span<std::byte> out) const override;
};

}  // namespace sgactor::apps
