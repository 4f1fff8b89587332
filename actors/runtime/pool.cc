#include "actors/core/pool_core.h"
#include "actors/runtime/members.h"
#include "actors/runtime/shell.h"

namespace sgactor::actors {
namespace {

struct PoolState {
  std::string name = "pool";
  int32_t rank = 0;
  std::shared_ptr<ProgramHost> host;
  std::shared_ptr<const Routes> routes;
  std::unique_ptr<PoolCore> core;
  std::vector<LeaseGrant> grants;  // kept so that granting allocates little
  Probe probe;
};
using Self = PoolActor::stateful_pointer<PoolState>;

/// Sends what the core has granted to the items' owners.
void send_grants(Self self) {
  PoolState& s = self->state;
  const Schedule& schedule = s.host->context().schedule;
  for (const LeaseGrant& grant : s.grants) {
    const LaneItem& item =
        schedule.lanes[static_cast<size_t>(grant.lane)][static_cast<size_t>(grant.at.position)];
    SlotsGranted msg{grant.at, item.micro_batch, {}};
    msg.leases.reserve(grant.leases.size());
    for (const LeaseId id : grant.leases) {
      // The pool outlives its leases' messages: a lease of a run that has ended is dropped.
      msg.leases.push_back(std::make_shared<Lease>(
          id, grant.lane, grant.at, [pool = PoolActor(self)](LeaseId lease, LanePoint last_use) {
            caf::anon_send(pool, ReleaseLease{lease, last_use});
          }));
    }
    if (item.kind == ItemKind::kFeed) {
      self->send(s.routes->feeder, std::move(msg));
    } else {
      self->send(s.routes->subgraphs[static_cast<size_t>(item.launch)], std::move(msg));
    }
  }
  s.grants.clear();
}

PoolActor::behavior_type pool_actor(Self self, const std::shared_ptr<ProgramHost>& host) {
  install_handlers(self);
  PoolState& s = self->state;
  s.rank = host->context().rank;
  s.host = host;
  s.core = std::make_unique<PoolCore>(*host->context().program, host->context().schedule);
  s.probe = Probe(host->shared, host->id == kTraining ? "pool" : "validation pool", s.rank);
  return {
      [self](const Wire& msg) { self->state.routes = msg.routes; },
      [self](const LeaseRequest& msg) {
        const auto span =
            self->state.probe.handle(self, "lease_request", msg.at.step, msg.micro_batch);
        if (Status st = self->state.core->request(msg.lane, msg.at, &self->state.grants);
            !st.ok()) {
          return fail(self, st, msg.at.step);
        }
        send_grants(self);
      },
      [self](const ReleaseLease& msg) {
        const auto span = self->state.probe.handle(self, "release_lease", msg.last_use.step);
        if (Status st = self->state.core->release(msg.lease, msg.last_use, &self->state.grants);
            !st.ok()) {
          return fail(self, st, msg.last_use.step);
        }
        send_grants(self);
      },
      [self](const LaneProgress& msg) {
        const auto span = self->state.probe.handle(self, "lane_progress", msg.at.step);
        self->state.core->on_progress(msg.lane, msg.at, &self->state.grants);
        send_grants(self);
      },
      [self](const AskPoolReport&) {
        self->send(self->state.routes->worker,
                   PoolReport{self->state.rank, self->state.host->id, self->state.core->stats()});
      },
  };
}

}  // namespace

PoolActor spawn_pool(caf::local_actor* parent, const std::shared_ptr<ProgramHost>& host) {
  return parent->spawn<caf::linked + caf::monitored>(pool_actor, host);
}

}  // namespace sgactor::actors
