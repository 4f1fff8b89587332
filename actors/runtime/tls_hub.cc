#include "actors/runtime/tls_hub.h"

#include "actors/runtime/tls_link.h"
#include "graph/base/log.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

namespace sgactor::actors {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kListenId = ~uint64_t{0};
constexpr int64_t kCloseMs = 5000;
constexpr int64_t kTickMs = 100;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct AddressList {
  explicit AddressList(addrinfo* l) : list(l) {}
  ~AddressList() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  addrinfo* list;
};

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown address";
  }
  return fmt::format("{}:{}", host.data(), port.data());
}

/// What other threads ask of the hub's.
struct Request {
  enum class Kind : uint8_t { kSend, kAdmit, kClose, kConnect };
  Kind kind;
  LinkId link;
  std::string bytes;
  std::unique_ptr<TlsLink> made;
};

class Hub final : public TlsHub {
 public:
  Hub(const HubLimits& limits, HubSink& sink) : limits_(limits), sink_(sink) {}
  ~Hub() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    if (thread_.joinable()) thread_.join();
    for (int fd : {epoll_, wake_, listener_}) {
      if (fd >= 0) ::close(fd);
    }
  }

  Status init(const TlsIdentity& identity) {
    SGA_ASSIGN(context_, TlsContext::create(identity));
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_ < 0 || wake_ < 0) {
      return internal_error(std::string("epoll: ") + std::strerror(errno));
    }
    watch(wake_, kWakeId, EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
    return {};
  }

  Result<uint16_t> listen(const std::string& address, uint16_t port) override;
  Result<LinkId> connect(const std::string& host, uint16_t port, int64_t timeout_ms) override;

  void send(LinkId link, std::string bytes) override {
    post({Request::Kind::kSend, link, std::move(bytes), nullptr});
  }
  void admit(LinkId link) override { post({Request::Kind::kAdmit, link, {}, nullptr}); }
  void close(LinkId link) override { post({Request::Kind::kClose, link, {}, nullptr}); }
  void flush(int64_t timeout_ms) override {
    std::unique_lock lock(mutex_);
    flushed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                      [&] { return requests_.empty() && num_unsent_ == 0; });
  }
  HubStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  void post(Request request) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      requests_.push_back(std::move(request));
    }
    wake();
  }
  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_, &one, sizeof(one));
  }
  void watch(int fd, uint64_t id, uint32_t events, int how) const {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    ::epoll_ctl(epoll_, how, fd, &event);
  }

  void run();
  void take_requests();
  void carry_out(Request& request);
  void accept_some();
  void make_room();
  void add_link(LinkId id, std::unique_ptr<TlsLink> link);
  void on_ready(LinkId id, uint32_t events);
  void after(LinkId id, TlsLink& link, const Status& status);
  void tick();
  void drop(LinkId id, const Status& why);
  void count_stranger(const std::string& address, const Status& why);
  void publish_stats();

  const HubLimits limits_;
  HubSink& sink_;
  std::shared_ptr<TlsContext> context_;
  int epoll_ = -1;
  int wake_ = -1;
  int listener_ = -1;
  std::thread thread_;
  std::atomic<LinkId> next_link_{1};

  mutable std::mutex mutex_;
  std::condition_variable flushed_;
  bool stopping_ = false;
  std::vector<Request> requests_;
  HubStats stats_;
  int64_t num_unsent_ = 0;  // links with bytes to write

  // The hub's thread alone.
  std::map<LinkId, std::unique_ptr<TlsLink>> links_;
  HubStats counts_;
  int64_t listen_again_ms_ = 0;
};

Result<uint16_t> Hub::listen(const std::string& address, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  const AddressList list(found);
  if (rc != 0) return invalid_argument(fmt::format("{}: {}", address, ::gai_strerror(rc)));
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int one = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (fd < 0 || ::bind(fd, found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd, 128) != 0) {
    const char* why = errno == EADDRINUSE ? "port in use" : std::strerror(errno);
    const auto status =
        invalid_argument(fmt::format("cannot listen on {}:{}: {}", address, port, why));
    if (fd >= 0) ::close(fd);
    return status;
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  listener_ = fd;
  watch(fd, kListenId, EPOLLIN, EPOLL_CTL_ADD);
  // Both families keep the port at the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

Result<LinkId> Hub::connect(const std::string& host, uint16_t port, int64_t timeout_ms) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const AddressList list(found);
  if (rc != 0) return invalid_argument(fmt::format("{}: {}", host, ::gai_strerror(rc)));
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return internal_error(std::string("socket: ") + std::strerror(errno));
  const std::string address = fmt::format("{}:{}", host, port);
  auto link = std::make_unique<TlsLink>(*context_, fd, /*accepts=*/false, address, now_ms());
  link->deadline_ms = now_ms() + timeout_ms;
  if (::connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return make_status(Code::kDisconnected, fmt::format("{}: {}", address, std::strerror(errno)));
  }
  const LinkId id = next_link_.fetch_add(1);
  post({Request::Kind::kConnect, id, {}, std::move(link)});
  return id;
}

void Hub::run() {
  // Signals belong to the main thread; a peer that has gone must not end the process (SIGPIPE).
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::array<epoll_event, 64> events{};
  int64_t next_tick = now_ms() + kTickMs;
  while (true) {
    const int64_t wait = std::max<int64_t>(0, next_tick - now_ms());
    const int n = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(wait));
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kWakeId) {
        uint64_t value = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_, &value, sizeof(value));
      } else if (id == kListenId) {
        accept_some();
      } else {
        on_ready(id, events[static_cast<size_t>(i)].events);
      }
    }
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    take_requests();
    if (now_ms() >= next_tick) {
      tick();
      next_tick = now_ms() + kTickMs;
    }
    publish_stats();
  }
  links_.clear();
}

void Hub::take_requests() {
  std::vector<Request> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
    if (!requests.empty()) ++num_unsent_;  // until publish_stats counts anew
  }
  for (Request& request : requests) carry_out(request);
}

void Hub::carry_out(Request& request) {
  if (request.kind == Request::Kind::kConnect)
    return add_link(request.link, std::move(request.made));
  const auto it = links_.find(request.link);
  if (it == links_.end()) return;
  TlsLink& link = *it->second;
  switch (request.kind) {
    case Request::Kind::kSend:
      if (link.closing) return;
      ++counts_.frames_sent;
      link.last_sent_ms = now_ms();
      link.queue_frame(request.bytes);
      if (link.queued_bytes() > limits_.max_queued_bytes) {
        return drop(request.link, make_status(Code::kOverloaded,
                                              link.address() + ": does not take what is sent"));
      }
      return after(request.link, link, link.pump());
    case Request::Kind::kAdmit:
      if (link.admitted) return;
      link.admitted = true;
      link.deadline_ms = 0;
      // Bytes that came with the first frame may lie in the TLS layer already.
      return on_ready(request.link, EPOLLIN);
    case Request::Kind::kClose:
      link.closing = true;
      link.deadline_ms = now_ms() + kCloseMs;
      return after(request.link, link, link.pump());
    case Request::Kind::kConnect:
      return;
  }
}

void Hub::accept_some() {
  for (int i = 0; i < 64; ++i) {
    sockaddr_storage from = {};
    socklen_t size = sizeof(from);
    const int fd = ::accept4(listener_, reinterpret_cast<sockaddr*>(&from), &size,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE) {
        // The kernel would report the same connection again at once.
        watch(listener_, kListenId, 0, EPOLL_CTL_MOD);
        listen_again_ms_ = now_ms() + kTickMs;
      }
      return;
    }
    make_room();
    const std::string address = numeric(reinterpret_cast<const sockaddr*>(&from), size);
    auto link = std::make_unique<TlsLink>(*context_, fd, /*accepts=*/true, address, now_ms());
    link->deadline_ms = now_ms() + limits_.admit_timeout_ms;
    add_link(next_link_.fetch_add(1), std::move(link));
  }
}

/// The oldest stranger goes first: a process of the job needs its place for milliseconds only.
void Hub::make_room() {
  int32_t half_open = 0;
  LinkId oldest = 0;
  for (const auto& [id, link] : links_) {
    if (link->admitted || !link->accepts()) continue;
    if (half_open++ == 0) oldest = id;
  }
  if (half_open >= limits_.max_half_open) {
    drop(oldest, make_status(Code::kOverloaded, "too many connections wait for admission"));
  }
}

void Hub::add_link(LinkId id, std::unique_ptr<TlsLink> link) {
  const int one = 1;
  ::setsockopt(link->fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  link->watched = EPOLLIN | EPOLLOUT;
  watch(link->fd(), id, link->watched, EPOLL_CTL_ADD);
  links_.emplace(id, std::move(link));
}

void Hub::on_ready(LinkId id, uint32_t events) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  TlsLink& link = *it->second;
  Status status = link.pump();
  if (status.ok() && link.just_opened()) {
    if (!link.accepts()) link.admitted = true, link.deadline_ms = 0;
    sink_.on_open(id, link.address(), link.accepts());
  }
  // A stranger's second frame stays in the kernel until the first was judged.
  std::string frame;
  while (status.ok() && !link.closing && (link.admitted || link.num_frames == 0)) {
    const size_t limit = link.admitted ? limits_.max_frame_bytes : limits_.max_first_bytes;
    const auto got = link.read_frame(limit, frame);
    if (!got.ok()) {
      status = got.status();
      break;
    }
    if (!*got) break;
    link.last_heard_ms = now_ms();
    if (frame.empty()) continue;
    ++link.num_frames;
    ++counts_.frames_received;
    sink_.on_frame(id, std::move(frame));
    frame.clear();
  }
  // What is not read must not be waited for: a stranger that has gone would wake the thread again.
  if (status.ok() && !link.admitted && link.num_frames > 0 &&
      (events & (EPOLLHUP | EPOLLERR)) != 0) {
    status = make_status(Code::kDisconnected, link.address() + ": connection lost");
  }
  after(id, link, status);
}

void Hub::after(LinkId id, TlsLink& link, const Status& status) {
  if (!status.ok()) return drop(id, status);
  if (link.closing && link.queued_bytes() == 0) return drop(id, {});
  uint32_t wanted = link.wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN;
  // Level-triggered: what must not be read yet must not wake the thread. A handshake is read for
  // even where the link closes once its frames are out.
  const bool shut = link.closing && link.open();
  if (shut || (!link.admitted && link.num_frames > 0)) wanted &= ~uint32_t{EPOLLIN};
  if (wanted == link.watched) return;
  link.watched = wanted;
  watch(link.fd(), id, wanted, EPOLL_CTL_MOD);
}

void Hub::tick() {
  const int64_t now = now_ms();
  if (listen_again_ms_ != 0 && now >= listen_again_ms_) {
    listen_again_ms_ = 0;
    watch(listener_, kListenId, EPOLLIN, EPOLL_CTL_MOD);
  }
  std::vector<LinkId> ids;
  for (const auto& [id, link] : links_) ids.push_back(id);
  for (LinkId id : ids) {
    TlsLink& link = *links_.at(id);
    if (link.deadline_ms != 0 && now >= link.deadline_ms) {
      drop(id, make_status(Code::kTimeout,
                           link.closing ? "closed" : link.address() + ": no answer in time"));
    } else if (link.admitted && now - link.last_heard_ms > limits_.silence_ms) {
      drop(id, make_status(Code::kTimeout, fmt::format("{}: silent for {} ms", link.address(),
                                                       now - link.last_heard_ms)));
    } else if (link.admitted && link.open() && link.queued_bytes() == 0 &&
               now - link.last_sent_ms >= limits_.heartbeat_ms) {
      link.last_sent_ms = now;
      link.queue_frame({});
      after(id, link, link.pump());
    }
  }
}

void Hub::drop(LinkId id, const Status& why) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  const std::unique_ptr<TlsLink> link = std::move(it->second);
  links_.erase(it);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, link->fd(), nullptr);
  if (link->accepts() && !link->admitted) count_stranger(link->address(), why);
  if (link->closing) return;
  if (link->accepts() && !link->told_open()) return;  // nobody has heard of it
  sink_.on_closed(id, why);
}

void Hub::count_stranger(const std::string& address, const Status& why) {
  const int64_t n = ++counts_.strangers;
  int64_t power = 1;
  while (power < n) power *= 10;
  if (power != n) return;
  log::info("control port: connection of {} not taken ({} so far): {}", address, n,
            why.ok() ? "refused" : why.message());
}

void Hub::publish_stats() {
  counts_.links = 0;
  counts_.half_open = 0;
  int64_t unsent = 0;
  for (const auto& [id, link] : links_) {
    ++(link->admitted ? counts_.links : counts_.half_open);
    if (link->queued_bytes() > 0) ++unsent;
  }
  const std::lock_guard lock(mutex_);
  stats_ = counts_;
  num_unsent_ = unsent;
  if (requests_.empty() && unsent == 0) flushed_.notify_all();
}

}  // namespace

Result<std::unique_ptr<TlsHub>> TlsHub::create(const TlsIdentity& identity, const HubLimits& limits,
                                               HubSink& sink) {
  auto out = std::make_unique<Hub>(limits, sink);
  SGA_TRY(out->init(identity));
  return std::unique_ptr<TlsHub>(std::move(out));
}

}  // namespace sgactor::actors
