#include "apps/sgactor/fabric_hash.h"

#include "actors/runtime/tls_identity.h"

#include <cstring>

namespace sgactor::apps {

transport::Digest FabricHash::hash(const transport::JobSecret& key,
                                   std::span<const std::byte> message) const {
  const std::string mac =
      actors::hmac_sha256({reinterpret_cast<const char*>(key.data()), key.size()},
                          {reinterpret_cast<const char*>(message.data()), message.size()});
  transport::Digest out{};
  std::memcpy(out.data(), mac.data(), out.size());
  return out;
}

void FabricHash::random(std::span<std::byte> out) const {
  const auto bytes = actors::random_bytes(out.size());
  SGA_CHECK(bytes.ok(), "the system has no random bytes");
  std::memcpy(out.data(), bytes->data(), out.size());
}

}  // namespace sgactor::apps
