#include "transport/ucx/process_fabric.h"

#include "graph/base/log.h"
#include "transport/ucx/address.h"

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
  if (!options.shared_memory && !options.ucx) {
    return unsupported("no transport between processes is switched on");
  }
  SGA_ASSIGN(auto loop, EventLoop::create(options.loop));
  std::unique_ptr<ProcessFabric> fabric(
      new ProcessFabric(self, std::move(options), std::move(loop)));
  ProcessAddress address;
  address.host = this_host();
  ProcessFabric* raw = fabric.get();
  if (fabric->options_.shared_memory) {
    SGA_TRY(fabric->listen_local());
    address.local_name = fabric->local_name_;
  }
  if (fabric->options_.ucx) {
    uint64_t number = 0;
    fabric->options_.fabric.keyed_hash->random(std::as_writable_bytes(std::span(&number, 1)));
    SGA_ASSIGN(fabric->ucx_, UcxWorker::create(*fabric->options_.ucx, number, *fabric->loop_,
                                               [raw](std::unique_ptr<Link> link) {
                                                 raw->link_opened(std::move(link), std::nullopt);
                                               }));
    address.ucx_address = fabric->ucx_->address();
  }
  fabric->address_ = encode_address(address);
  fabric->loop_->start();
  return fabric;
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
  listener_ = OwnedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener_.get() < 0) return system_error("socket");
  const LocalAddress at = local_address(local_name_);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at.address), at.bytes) != 0) {
    return system_error("bind");
  }
  if (::listen(listener_.get(), 128) != 0) return system_error("listen");
  return loop_->add_fd(listener_.get(), EPOLLIN, [this](uint32_t) { accept_local(); });
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
  if (!is_local) {
    return open_failed(
        peer, unsupported(fmt::format("peer {} shares no transport with this process", peer)),
        true);
  }
  if (Status s = open_local(peer, decoded->local_name); !s.ok()) {
    open_failed(peer, s, s.code() == Code::kDisconnected);
  }
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
  OwnedFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == EMFILE || errno == ENFILE) pause_listening();
    return;
  }
  if (!same_user(fd.get())) return count_refused();
  if (entering_.size() >= options_.fabric.max_unproved_links) {
    auto oldest = entering_.begin();
    for (auto it = entering_.begin(); it != entering_.end(); ++it) {
      if (it->second.number < oldest->second.number) oldest = it;
    }
    count_refused();
    drop_entering(oldest->first);
  }
  const int raw = fd.get();
  const uint64_t number = num_entered_++;
  if (!loop_->add_fd(raw, EPOLLIN, [this, raw](uint32_t) { take_memory(raw); }).ok()) return;
  entering_.insert_or_assign(raw, Entering{std::move(fd), number});
  loop_->post_after(options_.fabric.handshake_timeout_ns, [this, raw, number] {
    const auto it = entering_.find(raw);
    if (it == entering_.end() || it->second.number != number) return;
    count_refused();
    drop_entering(raw);
  });
}

// Out of descriptors, the listener would wake the loop again and again.
void ProcessFabric::pause_listening() {
  constexpr int64_t kPauseNs = 50'000'000;
  loop_->remove_fd(listener_.get());
  loop_->post_after(kPauseNs, [this] {
    (void)loop_->add_fd(listener_.get(), EPOLLIN, [this](uint32_t) { accept_local(); });
  });
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
  if (memory.get() < 0) return count_refused();
  auto link =
      ShmLink::create(ShmLink::Side::kAcceptor, std::move(owned), std::move(memory), *loop_);
  if (!link.ok()) return count_refused();
  link_opened(std::move(link).value(), std::nullopt);
}

}  // namespace sgactor::transport
