#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace sgactor::apps {

/// Where something listens, or is spoken to.
struct NetAddress {
  std::string host;   ///< a name, or an IPv4 or IPv6 address without brackets
  uint16_t port = 0;  ///< 0: any free one
};
/// "HOST:PORT", "[::1]:80". Errors: kInvalidArgument "expected HOST:PORT, got …" on one line. Looks
/// nothing up.
Result<NetAddress> parse_net_address(std::string_view text);
/// As parse_net_address() reads it.
std::string to_string(const NetAddress& address);

}  // namespace sgactor::apps
