#include "transport/ucx/tcp_link.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace sgactor::transport {
namespace {

constexpr int kBacklog = 1024;

struct Place {
  sockaddr_storage address{};
  socklen_t bytes = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Result<Place> parse_place(const std::string& text) {
  const Status wrong = invalid_argument(fmt::format("{} is not address:port in numbers", text));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong;
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || stopped != end) return wrong;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  Place place;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&place.address, &v4, place.bytes = sizeof(v4));
  } else if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&place.address, &v6, place.bytes = sizeof(v6));
  } else {
    return wrong;
  }
  return place;
}

OwnedFd new_socket(const Place& place) {
  return OwnedFd(
      socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

}  // namespace

Result<OwnedFd> listen_tcp(const std::string& text) {
  SGA_ASSIGN(const Place place, parse_place(text));
  OwnedFd fd = new_socket(place);
  const int one = 1;
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      ::bind(fd.get(), place.get(), place.bytes) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return unsupported(fmt::format("cannot listen at {}: {}", text, std::strerror(errno)));
  }
  return fd;
}

Result<std::string> place_of(const OwnedFd& listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return internal_error(fmt::format("getsockname: {}", std::strerror(errno)));
  }
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    inet_ntop(AF_INET, &v4.sin_addr, host.data(), host.size());
    return fmt::format("{}:{}", host.data(), ntohs(v4.sin_port));
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  inet_ntop(AF_INET6, &v6.sin6_addr, host.data(), host.size());
  return fmt::format("[{}]:{}", host.data(), ntohs(v6.sin6_port));
}

Result<OwnedFd> connect_tcp(const std::string& text) {
  SGA_ASSIGN(const Place place, parse_place(text));
  OwnedFd fd = new_socket(place);
  if (fd.get() < 0) return internal_error(fmt::format("socket: {}", std::strerror(errno)));
  if (::connect(fd.get(), place.get(), place.bytes) != 0 && errno != EINPROGRESS) {
    // Only who refuses is gone: a route or a port may be there again at the next try.
    const Code code = errno == ECONNREFUSED ? Code::kDisconnected : Code::kInternal;
    return make_status(code, fmt::format("{}: {}", text, std::strerror(errno)));
  }
  return fd;
}

}  // namespace sgactor::transport
