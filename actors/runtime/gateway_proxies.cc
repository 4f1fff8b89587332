// The two actors that stand for one in another process.
#include "actors/protocol/status_error.h"
#include "actors/runtime/gateway.h"
#include "actors/runtime/shell.h"

#include <caf/all.hpp>

#include <type_traits>

namespace sgactor::actors {
namespace {

struct WorkerProxyState {
  std::string name = "worker_proxy";
  int32_t rank = -1;
  GatewayActor gateway;
  wire::PeerId peer = wire::kNobody;
};
using WorkerProxy = WorkerActor::stateful_pointer<WorkerProxyState>;

template <class Message>
void to_worker(WorkerProxy self, const Message& msg) {
  self->send(self->state.gateway, SendToPeer{self->state.peer, msg, 0});
}
/// A message of a worker's own process.
void not_here(WorkerProxy self, const char* what) {
  fail(self, internal_error(std::string(what) + " sent to a worker of another process"));
}

WorkerActor::behavior_type worker_proxy(WorkerProxy self, const GatewayActor& gateway,
                                        wire::PeerId peer) {
  install_handlers(self);
  self->state.gateway = gateway;
  self->state.peer = peer;
  return {
      [self](const BeginStep& m) { to_worker(self, m); },
      [self](const Commit& m) { to_worker(self, m); },
      [self](const BeginValidation& m) { to_worker(self, m); },
      [self](const TakeSnapshot& m) { to_worker(self, m); },
      [self](const SnapshotEnqueued&) { not_here(self, "snapshot_enqueued"); },
      [self](const Finish& m) { to_worker(self, m); },
      [self](const LaneToken&) { not_here(self, "lane_token"); },
      [self](const WorkComplete&) { not_here(self, "work_complete"); },
      [self](const StepPrepared&) { not_here(self, "step_prepared"); },
      [self](const NumbersRead&) { not_here(self, "numbers_read"); },
      [self](const InputsKept&) { not_here(self, "inputs_kept"); },
      [self](const PoolReport&) { not_here(self, "pool_report"); },
      [self](const Rejoined&) { not_here(self, "rejoined"); },
      [self](const Resume& m) { to_worker(self, m); },
      [self](const Recheck& m) { to_worker(self, m); },
      [self](const GradientChecked&) { not_here(self, "gradient_checked"); },
  };
}

struct CoordinatorProxyState {
  std::string name = "coordinator_proxy";
  int32_t rank = -1;
  GatewayActor gateway;
};
using CoordinatorProxy = CoordinatorActor::stateful_pointer<CoordinatorProxyState>;

template <class Message>
void to_coordinator(CoordinatorProxy self, const Message& msg) {
  self->send(self->state.gateway, SendToPeer{wire::kCoordinatorPeer, msg, 0});
}

CoordinatorActor::behavior_type coordinator_proxy(
    CoordinatorProxy self, const GatewayActor& gateway,
    const std::function<WorkerActor(caf::local_actor*, const CoordinatorActor&)>& spawn_worker,
    int32_t first_rank) {
  install_handlers(self);
  self->state.gateway = gateway;
  // The worker's own end is told by its down message; exits of the gateway's are orders.
  self->set_exit_handler([self](caf::exit_msg& msg) {
    if (from_caf(msg.reason).ok()) self->quit(msg.reason);
  });
  self->set_down_handler([self, first_rank](caf::down_msg& msg) {
    Status status = from_caf(msg.reason);
    if (status.ok()) status = internal_error("the worker's actor ended before the run did");
    to_coordinator(self, FaultReport{first_rank, status});
  });
  const WorkerActor worker = spawn_worker(self, CoordinatorActor(self));
  self->send(gateway, BindCoordinator{worker, CoordinatorActor(self)});
  return {
      [self](const RankReady& m) { to_coordinator(self, m); },
      [self](const Vote& m) { to_coordinator(self, m); },
      [self](const JournalWritten&) {
        fail(self, internal_error("journal_written sent to a worker's process"));
      },
      [self](const StepDone& m) { to_coordinator(self, m); },
      [self](const ValidationDone& m) { to_coordinator(self, m); },
      [self](const SnapshotEnqueued& m) { to_coordinator(self, m); },
      [self](const SnapshotWritten& m) { to_coordinator(self, m); },
      [self](const CheckpointCommitted&) {
        fail(self, internal_error("checkpoint_committed sent to a worker's process"));
      },
      [self](const RankFinished& m) { to_coordinator(self, m); },
      [self](const FaultReport& m) { to_coordinator(self, m); },
      [self](const Fence&) { fail(self, internal_error("fence sent to a worker's process")); },
      [self](const Adopt&) { fail(self, internal_error("adopt sent to a worker's process")); },
  };
}

}  // namespace

WorkerActor spawn_worker_proxy(caf::local_actor* parent, const GatewayActor& gateway,
                               wire::PeerId peer, const std::vector<int32_t>& ranks,
                               const CoordinatorActor& coordinator) {
  WorkerActor proxy = parent->spawn<caf::linked + caf::monitored>(worker_proxy, gateway, peer);
  caf::anon_send(gateway, BindWorker{peer, ranks, coordinator, proxy});
  return proxy;
}

CoordinatorActor spawn_coordinator_proxy(
    caf::actor_system& system, const GatewayActor& gateway,
    std::function<WorkerActor(caf::local_actor* parent, const CoordinatorActor& coordinator)>
        spawn_worker,
    int32_t first_rank) {
  return system.spawn(coordinator_proxy, gateway, std::move(spawn_worker), first_rank);
}

}  // namespace sgactor::actors
