#include "actors/core/feed_core.h"
#include "actors/core/lane_core.h"
#include "actors/runtime/members.h"
#include "actors/runtime/shell.h"

namespace sgactor::actors {
namespace {

struct FeederState {
  std::string name = "feeder";
  int32_t rank = 0;
  std::shared_ptr<ProgramHost> host;
  std::shared_ptr<const Routes> routes;
  FeedCore core;
  LaneCore lane;
  std::vector<std::vector<std::shared_ptr<Lease>>> leases;  // by staging slot
  Probe probe;

  [[nodiscard]] const Schedule& schedule() const { return host->context().schedule; }
};
using Self = FeederActor::stateful_pointer<FeederState>;

/// Prepares as far ahead as there is staging.
void pump(Self self) {
  FeederState& s = self->state;
  while (const auto item = s.core.next_to_prepare()) {
    s.host->services.data->submit(
        [host = s.host, item = *item] {
          return host->setup.staging->prepare(host->context(), *host->setup.source, item.step,
                                              item.micro_batch, item.slot);
        },
        [feeder = FeederActor(self), item = *item](const Status& status) {
          caf::anon_send(feeder, BatchPrepared{item.step, item.micro_batch, status});
        });
  }
}

void run_enabled(Self self, const Probe::Span& span);

void on_prepared(Self self, const BatchPrepared& msg) {
  FeederState& s = self->state;
  const auto span = s.probe.handle(self, "batch_prepared", msg.step, msg.micro_batch);
  if (!msg.status.ok()) return fail(self, msg.status, msg.step);
  if (Status st = s.core.on_prepared(msg.step, msg.micro_batch); !st.ok()) {
    return fail(self, st, msg.step);
  }
  if (msg.micro_batch == 0) {
    const auto& numbers = s.host->setup.staging->numbers[static_cast<size_t>(msg.step % 2)];
    self->send(s.routes->worker, StepPrepared{s.rank, s.host->id, msg.step, numbers.valid_tokens,
                                              numbers.sample_hash});
  }
  const LanePoint at{msg.step, s.schedule().feed_positions[static_cast<size_t>(msg.micro_batch)]};
  if (!s.schedule().batch_buffers.empty()) {
    self->send(s.routes->pool, LeaseRequest{0, at, graph::kNoLaunch, msg.micro_batch});
    return;
  }
  s.lane.mark_ready(at);
  run_enabled(self, span);
}

/// Copies a micro-batch into the arena, in lane order, and hands it to its readers.
Status fire(Self self, const Probe::Span& span, LanePoint at) {
  FeederState& s = self->state;
  const ProgramContext& context = s.host->context();
  const int32_t micro_batch = s.schedule().lanes[0][static_cast<size_t>(at.position)].micro_batch;
  const auto item = s.core.prepared(at.step, micro_batch);
  if (!item) return internal_error("micro-batch is not in staging");
  const auto slot = static_cast<size_t>(item->slot);
  const FeedStaging::Slot& staged = s.host->setup.staging->slots[slot];
  kernels::Stream& stream = *context.lanes->lanes[0].stream;
  const size_t n = staged.buffers.size();
  if (n == 0) {
    // The numbers, put on the stream by the worker, have been read when this is complete.
    stream.fill_zero(context.lanes->lanes[0].marker, sizeof(uint64_t),
                     pack({WorkKind::kFeed, s.host->id, 0, micro_batch, at.step}),
                     *s.host->feeder_sink);
    return {};
  }
  for (size_t b = 0; b < n; ++b) {
    const graph::BufferId buffer = s.schedule().batch_buffers[b];
    const WorkKind kind = b + 1 == n ? WorkKind::kFeed : WorkKind::kQuiet;
    TensorHandle handle;
    handle.buffer = buffer;
    handle.slot = micro_batch % context.buffer(buffer).num_slots;
    handle.step = at.step;
    handle.micro_batch = micro_batch;
    handle.rank = s.rank;
    handle.incarnation = s.routes->incarnation;
    stream.copy(context.address(buffer, handle.slot), staged.buffers[b],
                context.buffer(buffer).bytes, pack({kind, s.host->id, 0, micro_batch, at.step}),
                *s.host->feeder_sink);
    handle.readiness = {0, at, nullptr};
    handle.lease = s.leases[slot][b];
    for (const Consumer& c : s.schedule().batch_consumers[b]) {
      span.sent(
          arrow_id(Arrow::kHandle, s.rank, s.host->id, at.step, c.launch, c.input, micro_batch));
      if (context.launch(c.launch).lane != 0 && !handle.readiness.event) {
        handle.readiness.event = stream.record();
      }
      self->send(s.routes->subgraphs[static_cast<size_t>(c.launch)],
                 HandleReady{c.input, micro_batch, handle});
    }
  }
  s.leases[slot].clear();
  return {};
}

void run_enabled(Self self, const Probe::Span& span) {
  FeederState& s = self->state;
  while (const auto at = s.lane.take()) {
    if (Status st = fire(self, span, *at); !st.ok()) return fail(self, st, at->step);
    const LanePoint to = s.lane.pass();
    const LaneItem& next = s.schedule().lanes[0][static_cast<size_t>(to.position)];
    span.sent(arrow_id(Arrow::kToken, s.rank, s.host->id, to.step, 0, to.position));
    const LaneToken token{s.rank, s.host->id, 0, to};
    // A feed stands right before its first user; without batches anything may follow.
    if (next.kind == ItemKind::kLaunch) {
      self->send(s.routes->subgraphs[static_cast<size_t>(next.launch)], token);
    } else {
      self->send(s.routes->worker, token);
    }
  }
}

void on_complete(Self self, const WorkComplete& msg) {
  FeederState& s = self->state;
  const WorkName work = unpack(msg.token);
  const auto span = s.probe.handle(self, "work_complete", work.step, work.micro_batch);
  if (!msg.status.ok()) return fail(self, msg.status, work.step);
  if (Status st = s.core.on_consumed(work.step, work.micro_batch); !st.ok()) {
    return fail(self, st, work.step);
  }
  pump(self);
}

FeederActor::behavior_type feeder_actor(Self self, const std::shared_ptr<ProgramHost>& host) {
  install_handlers(self);
  FeederState& s = self->state;
  s.rank = host->context().rank;
  s.host = host;
  host->feeder_sink->set_receiver(FeederActor(self));
  const auto num_slots = static_cast<int32_t>(host->setup.staging->slots.size());
  const auto num_feeds = static_cast<int32_t>(s.schedule().feed_positions.size());
  s.core = FeedCore(host->first_step, host->last_step, num_feeds, num_slots);
  s.leases.resize(static_cast<size_t>(num_slots));
  s.probe = Probe(host->shared, host->id == kTraining ? "feeder" : "validation feeder", s.rank);
  return {
      [self](const Wire& msg) {
        self->state.routes = msg.routes;
        pump(self);
      },
      [self](const BatchPrepared& msg) { on_prepared(self, msg); },
      [self](const SlotsGranted& msg) {
        FeederState& st = self->state;
        const auto span = st.probe.handle(self, "slots_granted", msg.at.step, msg.micro_batch);
        const auto item = st.core.prepared(msg.at.step, msg.micro_batch);
        if (!item) return fail(self, internal_error("slots for what is not in staging"));
        st.leases[static_cast<size_t>(item->slot)] = msg.leases;
        st.lane.mark_ready(msg.at);
        run_enabled(self, span);
      },
      [self](const LaneToken& msg) {
        FeederState& st = self->state;
        const auto span = st.probe.handle(self, "lane_token", msg.at.step);
        span.received(
            arrow_id(Arrow::kToken, st.rank, st.host->id, msg.at.step, msg.lane, msg.at.position));
        if (Status status = st.lane.offer(msg.at); !status.ok()) return fail(self, status);
        run_enabled(self, span);
      },
      [self](const WorkComplete& msg) { on_complete(self, msg); },
  };
}

}  // namespace

FeederActor spawn_feeder(caf::local_actor* parent, const std::shared_ptr<ProgramHost>& host) {
  return parent->spawn<caf::linked + caf::monitored>(feeder_actor, host);
}

}  // namespace sgactor::actors
