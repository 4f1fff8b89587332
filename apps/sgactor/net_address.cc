#include "apps/sgactor/net_address.h"

#include "apps/sgactor/printable.h"

#include <charconv>

namespace sgactor::apps {
namespace {

constexpr std::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

bool consists_of(std::string_view text, std::string_view more) {
  return !text.empty() && text.find_first_not_of(std::string(kLetters) + std::string(more)) ==
                              std::string_view::npos;
}

}  // namespace

Result<NetAddress> parse_net_address(std::string_view text) {
  const Status expected =
      invalid_argument("expected HOST:PORT, got \"" + one_line(text.substr(0, 200)) + "\"");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return expected;
  const std::string_view port = text.substr(colon + 1);
  NetAddress out;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || end != port.data() + port.size()) return expected;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    if (!consists_of(host, ":.%") || host.find(':') == std::string_view::npos) return expected;
  } else if (!consists_of(host, ".-_")) {
    return expected;
  }
  out.host = host;
  return out;
}

std::string to_string(const NetAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace sgactor::apps
