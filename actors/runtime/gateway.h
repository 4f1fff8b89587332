#pragma once
#include "actors/protocol/interfaces.h"
#include "actors/protocol/wire.h"
#include "actors/runtime/gateway_core.h"
#include "actors/runtime/tls_hub.h"

#include <caf/actor_system.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/typed_actor.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::actors {

/// What a gateway tells the process it belongs to. Called on the gateway's thread, one call at a
/// time; must not block.
class GatewayObserver {
 public:
  virtual ~GatewayObserver() = default;
  virtual void on_joined(const Peer& peer) = 0;
  /// A message between processes that is no step message and no answer.
  virtual void on_message(const wire::Envelope& envelope) = 0;
  /// A peer is gone, said once; `why` names it. In a joining process also if it was not taken.
  virtual void on_left(const Peer& peer, const Status& why) = 0;
};

// --- messages of a gateway, all local ---

/// the hub -> gateway.
struct LinkOpened {
  LinkId link = 0;
  std::string address;
  bool accepted = false;
};
struct LinkFrame {
  LinkId link = 0;
  std::string bytes;
};
struct LinkClosed {
  LinkId link = 0;
  Status why;
};
/// anybody -> gateway: send to a peer; dropped if it is gone (its proxy is down then).
struct SendToPeer {
  wire::PeerId peer = wire::kNobody;
  wire::Body body;
  uint64_t answers = 0;  ///< Envelope::request that this answers
};
/// anybody -> gateway: ask a peer. `answer` is called once, on the gateway's thread: with the
/// answer, or the Status of its refusal, its loss (at once when it goes) or the time-out.
struct AskPeer {
  wire::PeerId peer = wire::kNobody;
  wire::Body body;
  int64_t timeout_ms = 0;
  std::function<void(Result<wire::Body>)> answer;
};
/// coordinator's proxy of a worker -> gateway: step messages of `peer` go to `coordinator`, they
/// may be of `ranks` only, and the loss of the peer ends `proxy` with a Status that names it.
struct BindWorker {
  wire::PeerId peer = wire::kNobody;
  std::vector<int32_t> ranks;
  CoordinatorActor coordinator;
  WorkerActor proxy;
};
/// worker's side -> gateway: step messages of the coordinator go to `worker`; its loss ends
/// `proxy`.
struct BindCoordinator {
  WorkerActor worker;
  CoordinatorActor proxy;
};
/// a layer above -> gateway: payloads of `kind` go to `receiver`, with the peer they came from.
/// Payloads of kinds that nobody has subscribed to are messages for the process (SessionEvent).
struct SubscribeOpaque {
  uint32_t kind = 0;
  std::function<void(wire::PeerId from, const std::string& payload)> receiver;
};
struct SetGeneration {
  int64_t generation = 1;
};
/// Closes a peer's link, behind a Shutdown with this Status.
struct ExpelPeer {
  wire::PeerId peer = wire::kNobody;
  Status why;
};

/// One a process; alone holds links to other processes, so that every message that leaves or enters
/// goes through it: encoded and decoded, generation checked, questions with time-outs.
using GatewayActor =
    caf::typed_actor<caf::reacts_to<LinkOpened>, caf::reacts_to<LinkFrame>,
                     caf::reacts_to<LinkClosed>, caf::reacts_to<SendToPeer>,
                     caf::reacts_to<AskPeer>, caf::reacts_to<BindWorker>,
                     caf::reacts_to<BindCoordinator>, caf::reacts_to<SubscribeOpaque>,
                     caf::reacts_to<SetGeneration>, caf::reacts_to<ExpelPeer>>;

/// What carries bytes for a gateway; the simulation puts its network in place of the hub. Calls
/// come from the gateway's thread.
class GatewayLinks {
 public:
  virtual ~GatewayLinks() = default;
  virtual void send(LinkId link, std::string bytes) = 0;
  virtual void admit(LinkId link) = 0;
  virtual void close(LinkId link) = 0;
};

/// `links` and `observer` outlive the actor; a null observer is told nothing.
GatewayActor spawn_gateway(caf::actor_system& system, GatewaySelf self,
                           std::shared_ptr<GatewayLinks> links, GatewayObserver* observer);

/// In the coordinator's process: stands for the worker `peer`, which hosts `ranks`. Takes the
/// messages of a coordinator to its worker; goes down with a Status that names the worker when its
/// process is lost. Linked to and monitored by `parent`, as SpawnWorker wants it.
WorkerActor spawn_worker_proxy(caf::local_actor* parent, const GatewayActor& gateway,
                               wire::PeerId peer, const std::vector<int32_t>& ranks,
                               const CoordinatorActor& coordinator);

/// In a worker's process: stands for the coordinator. Spawns the worker by `spawn_worker` as its
/// own and forwards what it says. Ends with the coordinator's link, and tells the coordinator by a
/// FaultReport if the worker ends by itself.
CoordinatorActor spawn_coordinator_proxy(
    caf::actor_system& system, const GatewayActor& gateway,
    std::function<WorkerActor(caf::local_actor* parent, const CoordinatorActor& coordinator)>
        spawn_worker,
    int32_t first_rank);

}  // namespace sgactor::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::LinkOpened)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::LinkFrame)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::LinkClosed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::SendToPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::AskPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::BindWorker)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::BindCoordinator)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::SubscribeOpaque)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::SetGeneration)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::ExpelPeer)
