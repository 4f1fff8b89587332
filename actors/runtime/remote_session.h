#pragma once
#include "actors/runtime/gateway.h"
#include "actors/runtime/tls_hub.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace sgactor::actors {

/// What happens on a process's control plane, for its main thread.
struct SessionEvent {
  enum class Kind : uint8_t {
    kJoined = 0,
    kMessage,
    kLeft,
    kAnswer,  ///< the end of an ask()
    kPosted   ///< post() was called
  };
  Kind kind = Kind::kPosted;
  Peer peer;                ///< kJoined, kLeft; of kAnswer and kMessage only the id
  wire::Envelope envelope;  ///< kMessage; of kAnswer the body
  Status status;            ///< kLeft; kAnswer that is none
};

/// The control plane of one process: hub, actor system and gateway, and a queue of events. Made
/// before everything that talks to others, destroyed after it. The queue is for one thread; the
/// rest is thread-safe.
class RemoteSession final : private GatewayObserver {
 public:
  /// Errors: as TlsHub::create.
  static Result<std::unique_ptr<RemoteSession>> create(const TlsIdentity& identity,
                                                       GatewaySelf self, const HubLimits& limits,
                                                       int32_t scheduler_threads);
  /// As end_actors(), then the hub.
  ~RemoteSession() override;
  RemoteSession(const RemoteSession&) = delete;
  RemoteSession& operator=(const RemoteSession&) = delete;

  /// As TlsHub::listen.
  Result<uint16_t> listen(const std::string& address, uint16_t port);
  /// Connects to the first of "host:port" addresses that answers and waits for the welcome; tries
  /// again until `timeout_ms` is over. Returns the coordinator. Blocks. Also after the coordinator
  /// has left. `give_up` is called every 50 ms and ends it early. Errors: kDisconnected naming the
  /// addresses; what the coordinator said if it refused; kCorruption for another job's token.
  Result<Peer> join(const std::vector<std::string>& addresses, int64_t timeout_ms,
                    const std::function<bool()>& give_up = {});

  /// The next event; nothing if none comes within the time. Returns early, with nothing, when a
  /// signal interrupts: at most 50 ms late.
  std::optional<SessionEvent> next(int64_t timeout_ms);
  /// Whether an event waits for which `is_it` says so. Takes none.
  [[nodiscard]] bool holds(const std::function<bool(const SessionEvent&)>& is_it);
  /// Readable while events wait, for poll().
  [[nodiscard]] int event_fd() const { return event_fd_; }

  void send(wire::PeerId peer, wire::Body body, uint64_t answers = 0);
  /// A kAnswer event follows.
  void ask(wire::PeerId peer, wire::Body body, int64_t timeout_ms);
  /// Queues an event of kind kPosted.
  void post();
  /// Ends the gateway and waits for all actors of the system, which the caller has told to end.
  /// Nothing is sent or received afterwards.
  void end_actors();
  /// Waits until the gateway is the only actor left: the caller has told all others to end. False
  /// if they have not after `timeout_ms`; then the process is of no use any more.
  bool await_others(int64_t timeout_ms);
  /// Step messages of other generations are dropped from here on.
  void set_generation(int64_t generation);
  /// Ends a peer that is not to be heard any more: kLeft follows.
  void expel(wire::PeerId peer, const Status& why);
  /// Waits until what was sent so far has gone out, or the time is over.
  void flush(int64_t timeout_ms);

  [[nodiscard]] caf::actor_system& system() { return *system_; }
  [[nodiscard]] const GatewayActor& gateway() const { return gateway_; }
  [[nodiscard]] HubStats stats() const { return hub_->stats(); }

 private:
  /// Hands the hub's events to the gateway, and the gateway's bytes to the hub.
  class Wiring;

  RemoteSession() = default;
  void push(SessionEvent event);
  void on_joined(const Peer& peer) override;
  void on_message(const wire::Envelope& envelope) override;
  void on_left(const Peer& peer, const Status& why) override;

  std::mutex mutex_;
  std::deque<SessionEvent> events_;
  int event_fd_ = -1;
  std::unique_ptr<caf::actor_system_config> config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<Wiring> wiring_;
  GatewayActor gateway_;
  std::unique_ptr<TlsHub> hub_;
};

}  // namespace sgactor::actors
