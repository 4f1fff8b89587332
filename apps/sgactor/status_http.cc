// The only file that sees cpp-httplib: it parses requests and writes answers. Sockets are ours, as
// the library's own server bounds neither how long a request takes nor how many wait.
#include "apps/sgactor/status_http.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/printable.h"
#include "transport/ucx/owned_fd.h"

#include <httplib.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

using transport::OwnedFd;

constexpr int kNumThreads = 4;
constexpr int kBacklog = 16;
constexpr int64_t kConnectionMs = 2000;
constexpr int64_t kDrainMs = 200;
constexpr int kRetryMs = 100;
constexpr size_t kMaxRequestBytes = 8192;
constexpr size_t kMaxReplyBytes = size_t{16} << 20;

Status no_transport(const std::string& what) {
  return make_status(Code::kUnsupported, what, Scope::kDevice);
}

/// Waits until a descriptor is ready for `events`. False: the time is over, or `stop` is set.
bool wait_ready(int fd, int16_t events, int stop, int64_t deadline_ms) {
  while (true) {
    const int64_t left = deadline_ms - now_ms();
    if (left <= 0) return false;
    std::array<pollfd, 2> polled{{{fd, events, 0}, {stop, POLLIN, 0}}};
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && polled[1].revents == 0;
  }
}

/// One client. All of its reads and writes end by one deadline, however little each of them brings.
class Connection final : public httplib::Stream {
 public:
  Connection(int fd, int stop) : fd_(fd), stop_(stop), deadline_ms_(now_ms() + kConnectionMs) {}

  using httplib::Stream::write;
  [[nodiscard]] bool is_readable() const override { return true; }
  [[nodiscard]] bool is_writable() const override { return true; }

  ssize_t read(char* out, size_t size) override {
    if (begin_ == end_ && !fill()) return -1;
    const size_t count = std::min(size, end_ - begin_);
    std::memcpy(out, buffer_.data() + begin_, count);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* data, size_t size) override {
    while (wait_ready(fd_, POLLOUT, stop_, deadline_ms_)) {
      const ssize_t sent = ::send(fd_, data, size, MSG_NOSIGNAL);
      if (sent >= 0) return sent;
      if (errno != EAGAIN && errno != EINTR) break;
    }
    return -1;
  }
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  /// The library compares it with FD_SETSIZE, for a select() that is not used here.
  [[nodiscard]] socket_t socket() const override { return 0; }

  /// Takes what the client still sends: closing over unread bytes would take the answer back.
  void drain() {
    ::shutdown(fd_, SHUT_WR);
    deadline_ms_ = std::min(deadline_ms_, now_ms() + kDrainMs);
    size_t taken = 0;
    while (taken < 8 * kMaxRequestBytes && wait_ready(fd_, POLLIN, stop_, deadline_ms_)) {
      const ssize_t count = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return;
      taken += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
  }

 private:
  bool fill() {
    const size_t room = std::min(buffer_.size(), kMaxRequestBytes - num_read_);
    while (room > 0 && wait_ready(fd_, POLLIN, stop_, deadline_ms_)) {
      const ssize_t count = ::recv(fd_, buffer_.data(), room, 0);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (count <= 0) return false;
      begin_ = 0;
      end_ = static_cast<size_t>(count);
      num_read_ += end_;
      return true;
    }
    return false;
  }

  const int fd_, stop_;
  int64_t deadline_ms_;
  std::array<char, 4096> buffer_{};
  size_t begin_ = 0, end_ = 0, num_read_ = 0;
};

/// Everything is answered before the library routes: its routes are regular expressions.
class Responder final : public httplib::Server {
 public:
  explicit Responder(HttpServer::Answer answer) {
    set_pre_routing_handler(
        [answer = std::move(answer)](const httplib::Request& request, httplib::Response& response) {
          HttpReply reply{405, "text/plain; charset=utf-8", "only GET is answered here\n"};
          if (request.method == "GET") {
            reply = answer(request.path);
          } else {
            response.set_header("Allow", "GET");
          }
          response.status = reply.status;
          response.set_header("Cache-Control", "no-store");
          response.set_header("X-Content-Type-Options", "nosniff");
          response.set_header("X-Frame-Options", "DENY");
          response.set_header("Content-Security-Policy",
                              "default-src 'none'; style-src 'unsafe-inline'");
          response.set_content(reply.body, reply.type);
          return HandlerResponse::Handled;
        });
    set_exception_handler([](const auto&, httplib::Response& response, const auto&) {
      response.status = 500;
      response.set_content("it could not be answered\n", "text/plain; charset=utf-8");
    });
  }
  void serve(httplib::Stream& stream) {
    bool closed = false;
    // Of a list of ranges the library would make an answer many times the size of the content.
    process_request(stream, /*close_connection=*/true, closed,
                    [](httplib::Request& request) { request.ranges.clear(); });
  }
};

class Server final : public HttpServer {
 public:
  Server(OwnedFd socket, NetAddress address, Answer answer)
      : socket_(std::move(socket)),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        address_(std::move(address)),
        responder_(std::move(answer)) {}
  ~Server() override {
    const uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    for (std::thread& thread : threads_) thread.join();
  }
  Status start() {
    if (stop_.get() < 0) return internal_error(std::string("eventfd: ") + std::strerror(errno));
    for (int i = 0; i < kNumThreads; ++i) threads_.emplace_back([this] { run(); });
    return {};
  }
  [[nodiscard]] const NetAddress& address() const override { return address_; }

 private:
  void run() {
    while (true) {
      std::array<pollfd, 2> polled{{{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
      if (polled[1].revents != 0) return;
      if (polled[0].revents == 0) continue;
      const OwnedFd client(
          ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (client.get() >= 0) {
        serve(client.get());
      } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        // Out of descriptors, say: the client stays in the backlog, and this must not spin.
        pollfd stop{stop_.get(), POLLIN, 0};
        (void)::poll(&stop, 1, kRetryMs);
      }
    }
  }
  void serve(int fd) {
    Connection connection(fd, stop_.get());
    try {
      responder_.serve(connection);
    } catch (const std::exception&) {
      // Of one client that has gone or lies; nobody else has to know.
    }
    connection.drain();
  }

  OwnedFd socket_;
  OwnedFd stop_;
  NetAddress address_;
  Responder responder_;
  std::vector<std::thread> threads_;
};

/// What a socket is bound to, in numbers.
Result<NetAddress> bound_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(fd, address, &size) != 0 ||
      ::getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return internal_error("a socket's own address is not known");
  }
  return NetAddress{host.data(), static_cast<uint16_t>(std::stoi(port.data()))};
}

/// A socket that listens on one address; none, with errno set, if it cannot.
OwnedFd listen_on(const addrinfo& at) {
  const int type = at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
  OwnedFd socket(::socket(at.ai_family, type, at.ai_protocol));
  if (socket.get() < 0) return socket;
  const int yes = 1;
  // Connections of a run that has just ended do not hold the port.
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (at.ai_family == AF_INET6) {
    (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  }
  if (::bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 &&
      ::listen(socket.get(), kBacklog) == 0) {
    return socket;
  }
  const int why = errno;
  socket = OwnedFd();
  errno = why;
  return socket;
}

const char* why_not(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection";
    case httplib::Error::ConnectionTimeout:
      return "no connection in time";
    case httplib::Error::Canceled:
      return "its answer is too long";
    default:
      return "no HTTP answer";
  }
}

Result<HttpReply> get(const NetAddress& address, const std::string& path, int64_t limit_ms) {
  httplib::Client client(address.host, address.port);
  const std::chrono::milliseconds limit(limit_ms);
  client.set_connection_timeout(limit);
  client.set_read_timeout(limit);
  client.set_write_timeout(limit);
  HttpReply reply;
  const httplib::Result result = client.Get(path, [&reply](const char* data, size_t size) {
    if (reply.body.size() + size > kMaxReplyBytes) return false;
    reply.body.append(data, size);
    return true;
  });
  if (!result) {
    return no_transport(to_string(address) + " does not answer: " + why_not(result.error()));
  }
  reply.status = result->status;
  reply.type = result->get_header_value("Content-Type");
  return reply;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const NetAddress& address, Answer answer) {
  const auto failed = [&](const char* why) {
    return no_transport("cannot listen on " + to_string(address) + ": " + why);
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found)) {
    return failed(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  OwnedFd socket;
  for (const addrinfo* at = found; at != nullptr && socket.get() < 0; at = at->ai_next) {
    socket = listen_on(*at);
  }
  if (socket.get() < 0) return failed(std::strerror(errno));
  SGA_ASSIGN(NetAddress bound, bound_address(socket.get()));
  auto server = std::make_unique<Server>(std::move(socket), std::move(bound), std::move(answer));
  SGA_TRY(server->start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

Result<HttpReply> http_get(const NetAddress& address, const std::string& path, int64_t limit_ms) {
  try {
    return get(address, path, limit_ms);
  } catch (const std::exception& error) {
    return no_transport(to_string(address) + " does not answer: " + one_line(error.what()));
  }
}

}  // namespace sgactor::apps
