#include "transport/ucx/process_fabric.h"

#include "graph/base/log.h"
#include "transport/ucx/tcp_link.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sgactor::transport {
namespace {

constexpr char kMemoryFollows = 'M';

Status system_error(const char* what) {
  return internal_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

struct LocalAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// An abstract name: no file to clean up, gone with its socket.
LocalAddress local_address(const std::string& name) {
  LocalAddress a;
  a.address.sun_family = AF_UNIX;
  const size_t n = std::min(name.size(), sizeof(a.address.sun_path) - 1);
  std::memcpy(a.address.sun_path + 1, name.data(), n);
  a.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return a;
}

bool send_memory(int socket, int memory) {
  char byte = kMemoryFollows;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &memory, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

// The descriptor that came with the first byte; none of it is left open if it is not as agreed.
OwnedFd receive_memory(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n != 1) return {};
  OwnedFd memory;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t num_fds = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < num_fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      memory = OwnedFd(fd);
    }
  }
  return byte == kMemoryFollows ? std::move(memory) : OwnedFd();
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == getuid();
}

}  // namespace

Result<std::unique_ptr<ProcessFabric>> ProcessFabric::create(PeerId self,
                                                             ProcessFabricOptions options) {
  SGA_CHECK(options.fabric.keyed_hash != nullptr, "links between processes need a keyed hash");
  if (!options.shared_memory && options.tcp.empty() && !options.ucx) {
    return unsupported("no transport between processes is switched on");
  }
  SGA_ASSIGN(auto loop, EventLoop::create(options.loop));
  std::unique_ptr<ProcessFabric> fabric(
      new ProcessFabric(self, std::move(options), std::move(loop)));
  SGA_TRY(fabric->listen());
  fabric->loop_->start();
  return fabric;
}

Status ProcessFabric::listen() {
  ProcessAddress address;
  address.host = this_host();
  if (options_.shared_memory) {
    SGA_TRY(listen_local());
    address.local_name = local_name_;
  }
  SGA_TRY(listen_others(address));
  address_ = encode_address(address);
  return {};
}

Status ProcessFabric::listen_others(ProcessAddress& address) {
  if (!options_.tcp.empty()) {
    SGA_ASSIGN(tcp_listener_, listen_tcp(options_.tcp));
    SGA_ASSIGN(address.tcp_place, place_of(tcp_listener_));
    SGA_TRY(watch_listener(tcp_listener_, &ProcessFabric::accept_tcp));
  }
  if (options_.ucx) {
    uint64_t number = 0;
    options_.fabric.keyed_hash->random(std::as_writable_bytes(std::span(&number, 1)));
    SGA_ASSIGN(ucx_,
               UcxWorker::create(*options_.ucx, number, *loop_, [this](std::unique_ptr<Link> link) {
                 link_opened(std::move(link), std::nullopt);
               }));
    address.ucx_address = ucx_->address();
  }
  return {};
}

ProcessFabric::ProcessFabric(PeerId self, ProcessFabricOptions options,
                             std::unique_ptr<EventLoop> loop)
    : MessageFabric(self, loop.get(), options.fabric),
      options_(std::move(options)),
      loop_(std::move(loop)) {}

ProcessFabric::~ProcessFabric() {
  loop_->stop();
  shut_down();
  entering_.clear();
  ucx_.reset();
}

Status ProcessFabric::listen_local() {
  std::array<uint64_t, 2> random{};
  options_.fabric.keyed_hash->random(std::as_writable_bytes(std::span(random)));
  local_name_ = fmt::format("sgactor-{:016x}{:016x}-{}-{}", random[0], random[1], getpid(), self());
  local_listener_ = OwnedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (local_listener_.get() < 0) return system_error("socket");
  const LocalAddress at = local_address(local_name_);
  if (::bind(local_listener_.get(), reinterpret_cast<const sockaddr*>(&at.address), at.bytes) !=
      0) {
    return system_error("bind");
  }
  if (::listen(local_listener_.get(), 128) != 0) return system_error("listen");
  return watch_listener(local_listener_, &ProcessFabric::accept_local);
}

void ProcessFabric::open_link(PeerId peer, const std::string& address) {
  auto decoded = decode_address(address);
  if (!decoded.ok()) return open_failed(peer, decoded.status(), true);
  const bool is_local =
      options_.shared_memory && decoded->host == this_host() && !decoded->local_name.empty();
  if (!is_local && ucx_ && !decoded->ucx_address.empty()) {
    auto link = ucx_->open(decoded->ucx_address);
    if (!link.ok()) return open_failed(peer, link.status(), false);
    return link_opened(std::move(link).value(), peer);
  }
  Status opened = unsupported(fmt::format("peer {} shares no transport with this process", peer));
  if (is_local) {
    opened = open_local(peer, decoded->local_name);
  } else if (!options_.tcp.empty() && !decoded->tcp_place.empty()) {
    opened = open_tcp(peer, decoded->tcp_place);
  }
  if (opened.ok()) return;
  const bool for_ever = opened.code() == Code::kDisconnected || opened.code() == Code::kUnsupported;
  open_failed(peer, opened, for_ever);
}

Status ProcessFabric::open_tcp(PeerId peer, const std::string& place) {
  SGA_ASSIGN(OwnedFd fd, connect_tcp(place));
  SGA_ASSIGN(auto link, TcpLink::create(std::move(fd), *loop_));
  link_opened(std::move(link), peer);
  return {};
}

Status ProcessFabric::open_local(PeerId peer, const std::string& name) {
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return system_error("socket");
  const LocalAddress at = local_address(name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.bytes) != 0) {
    // An abstract socket refuses only when its process is gone; a full queue says EAGAIN.
    const bool gone = errno == ECONNREFUSED;
    return gone ? make_status(Code::kDisconnected, fmt::format("peer {} is gone", peer))
                : system_error("connect");
  }
  if (!same_user(fd.get())) return internal_error("another user's socket");
  SGA_ASSIGN(OwnedFd memory, ShmLink::create_memory());
  if (!send_memory(fd.get(), memory.get())) return system_error("sendmsg");
  SGA_ASSIGN(auto link,
             ShmLink::create(ShmLink::Side::kInitiator, std::move(fd), std::move(memory), *loop_));
  link_opened(std::move(link), peer);
  return {};
}

void ProcessFabric::accept_local() {
  OwnedFd fd(accept4(local_listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == EMFILE || errno == ENFILE) {
      pause_listening(local_listener_, &ProcessFabric::accept_local);
    }
    return;
  }
  if (!same_user(fd.get())) return count_refused(internal_error("another user"));
  if (entering_.size() >= options_.fabric.max_unproved_links) {
    auto oldest = entering_.begin();
    for (auto it = entering_.begin(); it != entering_.end(); ++it) {
      if (it->second.number < oldest->second.number) oldest = it;
    }
    count_refused(make_status(Code::kOverloaded, "too many links without a proof"));
    drop_entering(oldest->first);
  }
  const int raw = fd.get();
  const uint64_t number = num_entered_++;
  if (!loop_->add_fd(raw, EPOLLIN, [this, raw](uint32_t) { take_memory(raw); }).ok()) return;
  entering_.insert_or_assign(raw, Entering{std::move(fd), number});
  loop_->post_after(options_.fabric.handshake_timeout_ns, [this, raw, number] {
    const auto it = entering_.find(raw);
    if (it == entering_.end() || it->second.number != number) return;
    count_refused(make_status(Code::kTimeout, "no memory in time"));
    drop_entering(raw);
  });
}

void ProcessFabric::accept_tcp() {
  OwnedFd fd(accept4(tcp_listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == EMFILE || errno == ENFILE) {
      pause_listening(tcp_listener_, &ProcessFabric::accept_tcp);
    }
    return;
  }
  auto link = TcpLink::create(std::move(fd), *loop_);
  if (!link.ok()) return count_refused(link.status());
  link_opened(std::move(link).value(), std::nullopt);
}

Status ProcessFabric::watch_listener(const OwnedFd& listener, void (ProcessFabric::*accept)()) {
  return loop_->add_fd(listener.get(), EPOLLIN, [this, accept](uint32_t) { (this->*accept)(); });
}

// Out of descriptors, the listener would wake the loop again and again.
void ProcessFabric::pause_listening(const OwnedFd& listener, void (ProcessFabric::*accept)()) {
  constexpr int64_t kPauseNs = 50'000'000;
  loop_->remove_fd(listener.get());
  loop_->post_after(kPauseNs,
                    [this, &listener, accept] { (void)watch_listener(listener, accept); });
}

void ProcessFabric::drop_entering(int socket) {
  loop_->remove_fd(socket);
  entering_.erase(socket);
}

void ProcessFabric::take_memory(int socket) {
  const auto it = entering_.find(socket);
  if (it == entering_.end()) return;
  OwnedFd memory = receive_memory(socket);
  loop_->remove_fd(socket);
  OwnedFd owned = std::move(it->second.socket);
  entering_.erase(it);
  if (memory.get() < 0) return count_refused(corruption("garbage in place of shared memory"));
  auto link =
      ShmLink::create(ShmLink::Side::kAcceptor, std::move(owned), std::move(memory), *loop_);
  if (!link.ok()) return count_refused(link.status());
  link_opened(std::move(link).value(), std::nullopt);
}

}  // namespace sgactor::transport
