#include "actors/runtime/remote_session.h"

#include <caf/all.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace sgactor::actors {
namespace {

constexpr int64_t kConnectMs = 3000;
constexpr int64_t kRetryMs = 50;
constexpr int64_t kPollMs = 50;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class SessionConfig : public caf::actor_system_config {
 public:
  explicit SessionConfig(int32_t num_threads) {
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", static_cast<size_t>(num_threads));
    set("scheduler.max-throughput", size_t{64});
  }
};

std::string list(const std::vector<std::string>& addresses) {
  std::string out;
  for (const std::string& a : addresses) out += (out.empty() ? "" : ", ") + a;
  return out;
}

}  // namespace

class RemoteSession::Wiring final : public HubSink, public GatewayLinks {
 public:
  void start(TlsHub* hub, const GatewayActor& gateway) {
    gateway_ = gateway;
    hub_ = hub;
  }
  /// The hub has stopped or is about to.
  void stop() { hub_ = nullptr; }
  void release() { gateway_ = nullptr; }

  void on_open(LinkId link, const std::string& address, bool accepted) override {
    caf::anon_send(gateway_, LinkOpened{link, address, accepted});
  }
  void on_frame(LinkId link, std::string bytes) override {
    caf::anon_send(gateway_, LinkFrame{link, std::move(bytes)});
  }
  void on_closed(LinkId link, const Status& why) override {
    caf::anon_send(gateway_, LinkClosed{link, why});
  }
  void send(LinkId link, std::string bytes) override {
    if (TlsHub* hub = hub_) hub->send(link, std::move(bytes));
  }
  void admit(LinkId link) override {
    if (TlsHub* hub = hub_) hub->admit(link);
  }
  void close(LinkId link) override {
    if (TlsHub* hub = hub_) hub->close(link);
  }

 private:
  std::atomic<TlsHub*> hub_{nullptr};
  GatewayActor gateway_;
};

Result<std::unique_ptr<RemoteSession>> RemoteSession::create(const TlsIdentity& identity,
                                                             GatewaySelf self,
                                                             const HubLimits& limits,
                                                             int32_t scheduler_threads) {
  std::unique_ptr<RemoteSession> out(new RemoteSession);
  out->event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  out->config_ = std::make_unique<SessionConfig>(scheduler_threads);
  out->system_ = std::make_unique<caf::actor_system>(*out->config_);
  out->wiring_ = std::make_shared<Wiring>();
  out->gateway_ = spawn_gateway(*out->system_, std::move(self), out->wiring_, out.get());
  auto hub = TlsHub::create(identity, limits, *out->wiring_);
  if (!hub.ok()) return hub.status();
  out->hub_ = std::move(*hub);
  out->wiring_->start(out->hub_.get(), out->gateway_);
  return out;
}

void RemoteSession::end_actors() {
  caf::anon_send_exit(gateway_, caf::exit_reason::user_shutdown);
  system_->await_all_actors_done();
}

RemoteSession::~RemoteSession() {
  end_actors();
  wiring_->stop();
  hub_.reset();
  wiring_->release();
  gateway_ = nullptr;
  system_.reset();
  if (event_fd_ >= 0) ::close(event_fd_);
}

Result<uint16_t> RemoteSession::listen(const std::string& address, uint16_t port) {
  return hub_->listen(address, port);
}

Result<Peer> RemoteSession::join(const std::vector<std::string>& addresses, int64_t timeout_ms,
                                 const std::function<bool()>& give_up) {
  const int64_t deadline = now_ms() + timeout_ms;
  Status last = make_status(Code::kDisconnected, "no address is known");
  const auto over = [&give_up] { return give_up && give_up(); };
  for (size_t i = 0; !addresses.empty() && !over(); ++i) {
    const std::string& address = addresses[i % addresses.size()];
    SGA_ASSIGN(const HostPort place, parse_host_port(address));
    const int64_t left = deadline - now_ms();
    if (left <= 0) break;
    const auto link = hub_->connect(place.host, place.port, std::min(left, kConnectMs));
    if (!link.ok()) {
      last = link.status();
      if (i + 1 >= addresses.size() && last.code() == Code::kInvalidArgument) return last;
    } else {
      while (now_ms() < deadline + kRetryMs && !over()) {
        std::optional<SessionEvent> event = next(kRetryMs);
        if (!event) continue;
        if (event->kind == SessionEvent::Kind::kJoined) return event->peer;
        if (event->kind != SessionEvent::Kind::kLeft) continue;
        last = event->status;
        break;
      }
      // Somebody answered and said no: asking again changes nothing.
      if (last.code() != Code::kDisconnected && last.code() != Code::kTimeout) return last;
    }
    // The coordinator may not be up yet.
    (void)next(kRetryMs);
  }
  return make_status(Code::kDisconnected, fmt::format("cannot reach the coordinator at {}: {}",
                                                      list(addresses), last.message()));
}

std::optional<SessionEvent> RemoteSession::next(int64_t timeout_ms) {
  const int64_t deadline = now_ms() + timeout_ms;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        SessionEvent event = std::move(events_.front());
        events_.pop_front();
        if (events_.empty()) {
          uint64_t count = 0;
          [[maybe_unused]] const ssize_t n = ::read(event_fd_, &count, sizeof(count));
        }
        return event;
      }
    }
    const int64_t left = deadline - now_ms();
    if (left <= 0) return std::nullopt;
    pollfd fd = {event_fd_, POLLIN, 0};
    if (::poll(&fd, 1, static_cast<int>(std::min(left, kPollMs))) < 0) return std::nullopt;
  }
}

bool RemoteSession::holds(const std::function<bool(const SessionEvent&)>& is_it) {
  const std::lock_guard lock(mutex_);
  return std::any_of(events_.begin(), events_.end(), is_it);
}

void RemoteSession::push(SessionEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event_fd_, &one, sizeof(one));
}

void RemoteSession::on_joined(const Peer& peer) {
  push({SessionEvent::Kind::kJoined, peer, {}, {}});
}
void RemoteSession::on_message(const wire::Envelope& envelope) {
  Peer peer;
  peer.id = envelope.sender;
  push({SessionEvent::Kind::kMessage, std::move(peer), envelope, {}});
}
void RemoteSession::on_left(const Peer& peer, const Status& why) {
  push({SessionEvent::Kind::kLeft, peer, {}, why});
}
void RemoteSession::post() { push({}); }

void RemoteSession::send(wire::PeerId peer, wire::Body body, uint64_t answers) {
  caf::anon_send(gateway_, SendToPeer{peer, std::move(body), answers});
}

void RemoteSession::ask(wire::PeerId peer, wire::Body body, int64_t timeout_ms) {
  AskPeer question;
  question.peer = peer;
  question.body = std::move(body);
  question.timeout_ms = timeout_ms;
  question.answer = [this, peer](Result<wire::Body> answer) {
    SessionEvent event;
    event.kind = SessionEvent::Kind::kAnswer;
    event.peer.id = peer;
    event.status = answer.status();
    if (answer.ok()) event.envelope.body = std::move(*answer);
    push(std::move(event));
  };
  caf::anon_send(gateway_, std::move(question));
}

bool RemoteSession::await_others(int64_t timeout_ms) {
  // The registry waits without a limit of time, so a thread of its own waits for it.
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> ended = done->get_future();
  std::thread waiter([done, system = system_.get()] {
    system->registry().await_running_count_equal(1);
    done->set_value();
  });
  if (ended.wait_for(std::chrono::milliseconds(timeout_ms)) == std::future_status::ready) {
    waiter.join();
    return true;
  }
  waiter.detach();
  return false;
}

void RemoteSession::set_generation(int64_t generation) {
  caf::anon_send(gateway_, SetGeneration{generation});
}

void RemoteSession::expel(wire::PeerId peer, const Status& why) {
  caf::anon_send(gateway_, ExpelPeer{peer, why});
}

void RemoteSession::flush(int64_t timeout_ms) {
  // Questions to nobody are answered at once: the gateway has then handled all before this one.
  auto passed = std::make_shared<std::promise<void>>();
  AskPeer marker;
  marker.answer = [passed](const Result<wire::Body>&) { passed->set_value(); };
  std::future<void> done = passed->get_future();
  caf::anon_send(gateway_, std::move(marker));
  if (done.wait_for(std::chrono::milliseconds(timeout_ms)) == std::future_status::ready) {
    hub_->flush(timeout_ms);
  }
}

}  // namespace sgactor::actors
