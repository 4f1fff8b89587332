#include "actors/runtime/gateway.h"

#include "actors/protocol/status_error.h"
#include "actors/runtime/shell.h"
#include "graph/base/log.h"

#include <caf/all.hpp>

#include <chrono>
#include <map>
#include <type_traits>

namespace sgactor::actors {
namespace {

using TickAtom = caf::atom_constant<caf::atom("gwtick")>;
constexpr auto kTick = std::chrono::milliseconds(100);

using Gateway = GatewayActor::extend<caf::reacts_to<TickAtom>>;

/// Messages that a worker says to its coordinator.
template <class T>
constexpr bool kToCoordinator =
    std::is_same_v<T, RankReady> || std::is_same_v<T, Vote> || std::is_same_v<T, StepDone> ||
    std::is_same_v<T, ValidationDone> || std::is_same_v<T, SnapshotEnqueued> ||
    std::is_same_v<T, SnapshotWritten> || std::is_same_v<T, RankFinished> ||
    std::is_same_v<T, FaultReport>;
/// And back.
template <class T>
constexpr bool kToWorker =
    std::is_same_v<T, BeginStep> || std::is_same_v<T, Commit> ||
    std::is_same_v<T, BeginValidation> || std::is_same_v<T, TakeSnapshot> ||
    std::is_same_v<T, Finish> || std::is_same_v<T, Resume> || std::is_same_v<T, Recheck>;

struct GatewayState {
  std::string name = "gateway";
  int32_t rank = -1;
  std::unique_ptr<GatewayCore> core;
  std::shared_ptr<GatewayLinks> links;
  GatewayObserver* observer = nullptr;
  // Weak: an actor that nobody else holds is gone, and what is sent to it with it.
  struct Binding {
    CoordinatorActor coordinator;
    WorkerActor proxy;
  };
  std::map<wire::PeerId, Binding> workers;
  WorkerActor worker;
  CoordinatorActor coordinator_proxy;
  std::map<uint32_t, std::function<void(wire::PeerId, const std::string&)>> subscribers;
  std::map<uint64_t, std::function<void(Result<wire::Body>)>> questions;
  uint64_t next_token = 1;
  bool ticking = false;
};
using Self = Gateway::stateful_pointer<GatewayState>;

int64_t now_ms(Self self) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             self->clock().now().time_since_epoch())
      .count();
}

void deliver(Self self, wire::Envelope& envelope) {
  GatewayState& s = self->state;
  std::visit(
      [&](auto& m) {
        using T = std::decay_t<decltype(m)>;
        if constexpr (kToCoordinator<T>) {
          const auto it = s.workers.find(envelope.sender);
          if (it != s.workers.end()) self->send(it->second.coordinator, std::move(m));
        } else if constexpr (kToWorker<T>) {
          if (s.worker) self->send(s.worker, std::move(m));
        } else if constexpr (std::is_same_v<T, wire::Opaque>) {
          const auto it = s.subscribers.find(m.kind);
          if (it != s.subscribers.end()) {
            it->second(envelope.sender, m.payload);
          } else if (s.observer != nullptr) {
            s.observer->on_message(envelope);
          }
        } else if (s.observer != nullptr) {
          s.observer->on_message(envelope);
        }
      },
      envelope.body);
}

void on_left(Self self, const Peer& peer, const Status& why) {
  GatewayState& s = self->state;
  if (const auto it = s.workers.find(peer.id); it != s.workers.end()) {
    const GatewayState::Binding binding = std::move(it->second);
    s.workers.erase(it);
    self->send_exit(binding.proxy, to_caf(why));
  }
  if (peer.id == wire::kCoordinatorPeer && s.coordinator_proxy) {
    self->send_exit(s.coordinator_proxy, caf::exit_reason::user_shutdown);
    s.coordinator_proxy = nullptr;
    s.worker = nullptr;
  }
  if (s.observer != nullptr) s.observer->on_left(peer, why);
}

void answer(Self self, uint64_t token, Result<wire::Body> result) {
  const auto it = self->state.questions.find(token);
  if (it == self->state.questions.end()) return;
  const auto receiver = std::move(it->second);
  self->state.questions.erase(it);
  receiver(std::move(result));
}

void carry_out(Self self, GatewayCore::Effects effects) {
  GatewayState& s = self->state;
  for (GatewayCore::Effect& effect : effects) {
    std::visit(
        [&](auto& e) {
          using T = std::decay_t<decltype(e)>;
          if constexpr (std::is_same_v<T, GatewayCore::SendFrame>) {
            s.links->send(e.link, std::move(e.bytes));
          } else if constexpr (std::is_same_v<T, GatewayCore::Admit>) {
            s.links->admit(e.link);
          } else if constexpr (std::is_same_v<T, GatewayCore::CloseLink>) {
            s.links->close(e.link);
          } else if constexpr (std::is_same_v<T, GatewayCore::Joined>) {
            if (s.observer != nullptr) s.observer->on_joined(e.peer);
          } else if constexpr (std::is_same_v<T, GatewayCore::Left>) {
            on_left(self, e.peer, e.why);
          } else if constexpr (std::is_same_v<T, GatewayCore::Deliver>) {
            deliver(self, e.envelope);
          } else if constexpr (std::is_same_v<T, GatewayCore::Answered>) {
            answer(self, e.token, std::move(e.answer));
          } else {
            log::info("control port: {}", e.line);
          }
        },
        effect);
  }
}

void keep_ticking(Self self) {
  GatewayState& s = self->state;
  if (s.ticking || s.core->num_pending() == 0) return;
  s.ticking = true;
  self->delayed_send(self, kTick, TickAtom::value);
}

void ask(Self self, const AskPeer& msg) {
  GatewayState& s = self->state;
  const uint64_t token = s.next_token++;
  s.questions[token] = msg.answer;
  carry_out(self, s.core->ask(msg.peer, msg.body, token, now_ms(self) + msg.timeout_ms));
  keep_ticking(self);
}

void bind_worker(Self self, const BindWorker& msg) {
  GatewayState& s = self->state;
  s.core->set_ranks(msg.peer, msg.ranks);
  s.workers[msg.peer] = {msg.coordinator, msg.proxy};
  // The peer may have gone before: then no Left follows.
  if (!s.core->knows(msg.peer)) {
    Peer gone;
    gone.id = msg.peer;
    on_left(self, gone, make_status(Code::kDisconnected, "a worker is gone", Scope::kRank));
  }
}

Gateway::behavior_type gateway_actor(Self self, GatewaySelf who,
                                     const std::shared_ptr<GatewayLinks>& links,
                                     GatewayObserver* observer) {
  install_handlers(self);
  self->state.core = std::make_unique<GatewayCore>(std::move(who));
  self->state.links = links;
  self->state.observer = observer;
  return {
      [self](const LinkOpened& m) {
        carry_out(self, self->state.core->on_opened(m.link, m.address, m.accepted));
      },
      [self](const LinkFrame& m) { carry_out(self, self->state.core->on_frame(m.link, m.bytes)); },
      [self](const LinkClosed& m) { carry_out(self, self->state.core->on_closed(m.link, m.why)); },
      [self](const SendToPeer& m) {
        carry_out(self, self->state.core->send(m.peer, m.body, m.answers));
      },
      [self](const AskPeer& m) { ask(self, m); },
      [self](const BindWorker& m) { bind_worker(self, m); },
      [self](const BindCoordinator& m) {
        self->state.worker = m.worker;
        self->state.coordinator_proxy = m.proxy;
        if (!self->state.core->knows(wire::kCoordinatorPeer)) {
          self->send_exit(m.proxy, caf::exit_reason::user_shutdown);
        }
      },
      [self](const SubscribeOpaque& m) { self->state.subscribers[m.kind] = m.receiver; },
      [self](const SetGeneration& m) { self->state.core->set_generation(m.generation); },
      [self](const ExpelPeer& m) { carry_out(self, self->state.core->expel(m.peer, m.why)); },
      [self](TickAtom) {
        self->state.ticking = false;
        carry_out(self, self->state.core->tick(now_ms(self)));
        keep_ticking(self);
      },
  };
}

}  // namespace

GatewayActor spawn_gateway(caf::actor_system& system, GatewaySelf self,
                           std::shared_ptr<GatewayLinks> links, GatewayObserver* observer) {
  return system.spawn(gateway_actor, std::move(self), std::move(links), observer);
}

}  // namespace sgactor::actors
