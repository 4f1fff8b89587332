#include "actors/runtime/standing_proxy.h"

#include "actors/protocol/status_error.h"
#include "actors/runtime/shell.h"

#include <caf/all.hpp>

#include <string>
#include <utility>

namespace sgactor::actors {
namespace {

struct StandingProxyState {
  std::string name = "coordinator_proxy";
  int32_t rank = -1;
  GatewayActor gateway;
  std::shared_ptr<Voice> voice;
};
using Self = CoordinatorActor::stateful_pointer<StandingProxyState>;

template <class Message>
void say(Self self, const Message& msg) {
  if (self->state.voice->hushed()) return;
  self->send(self->state.gateway, SendToPeer{wire::kCoordinatorPeer, msg, 0});
}

void report(Self self, const FaultReport& msg) {
  if (!msg.suspended) self->state.voice->note_failure(msg.status);
  say(self, msg);
}

void not_here(Self self, const char* what) {
  fail(self, internal_error(std::string(what) + " sent to a worker's process"));
}

void watch(Self self, int32_t first_rank) {
  self->set_exit_handler([self](caf::exit_msg& msg) {
    // The gateway's says that the link is gone. The worker's own end is told by its down message.
    if (msg.source == self->state.gateway) return;
    if (from_caf(msg.reason).ok()) self->quit(msg.reason);
  });
  self->set_down_handler([self, first_rank](caf::down_msg& msg) {
    Status status = from_caf(msg.reason);
    if (status.ok()) status = internal_error("the worker's actor ended before the run did");
    report(self, FaultReport{first_rank, status});
  });
}

CoordinatorActor::behavior_type standing_proxy(
    Self self, const GatewayActor& gateway,
    const std::function<WorkerActor(caf::local_actor*, const CoordinatorActor&)>& spawn_worker,
    int32_t first_rank, const std::shared_ptr<Voice>& voice) {
  install_handlers(self);
  self->state.gateway = gateway;
  self->state.voice = voice;
  watch(self, first_rank);
  const WorkerActor worker = spawn_worker(self, CoordinatorActor(self));
  self->send(gateway, BindCoordinator{worker, CoordinatorActor(self)});
  return {
      [self](const RankReady& m) { say(self, m); },
      [self](const Vote& m) { say(self, m); },
      [self](const JournalWritten&) { not_here(self, "journal_written"); },
      [self](const StepDone& m) { say(self, m); },
      [self](const ValidationDone& m) { say(self, m); },
      [self](const SnapshotEnqueued& m) { say(self, m); },
      [self](const SnapshotWritten& m) { say(self, m); },
      [self](const CheckpointCommitted&) { not_here(self, "checkpoint_committed"); },
      [self](const RankFinished& m) { say(self, m); },
      [self](const FaultReport& m) { report(self, m); },
      [self](const Fence&) { not_here(self, "fence"); },
      [self](const Adopt&) { not_here(self, "adopt"); },
  };
}

}  // namespace

CoordinatorActor spawn_standing_proxy(
    caf::actor_system& system, const GatewayActor& gateway,
    std::function<WorkerActor(caf::local_actor* parent, const CoordinatorActor& coordinator)>
        spawn_worker,
    int32_t first_rank, std::shared_ptr<Voice> voice) {
  return system.spawn(standing_proxy, gateway, std::move(spawn_worker), first_rank,
                      std::move(voice));
}

}  // namespace sgactor::actors
