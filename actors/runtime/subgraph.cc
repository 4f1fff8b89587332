#include "actors/core/lane_core.h"
#include "actors/core/subgraph_core.h"
#include "actors/runtime/members.h"
#include "actors/runtime/shell.h"

namespace sgactor::actors {
namespace {

struct SubgraphState {
  std::string name = "subgraph";
  int32_t rank = 0;
  std::shared_ptr<ProgramHost> host;
  std::shared_ptr<const Routes> routes;
  graph::LaunchId launch = graph::kNoLaunch;
  const LaunchWiring* wiring = nullptr;
  ActorSink* sink = nullptr;
  SubgraphCore core;
  LaneCore lane;
  // By place of the core: what an execution holds until it is on the stream (handles from other
  // lanes, and everything on a channel: until it is complete).
  struct Held {
    std::vector<TensorHandle> inputs;
    std::vector<std::shared_ptr<Lease>> leases;
    std::vector<TensorHandle> outputs;  // for those who are told of completion
  };
  std::vector<Held> held;
  LaunchPointers pointers;
  ExecutionLedger* executions = nullptr;  // null: not counted
  Probe probe;

  [[nodiscard]] const std::vector<LaneItem>& items() const {
    return host->context().schedule.lanes[static_cast<size_t>(wiring->lane)];
  }
  [[nodiscard]] LanePoint point(int64_t step, int32_t micro_batch) const {
    return {step, wiring->positions[static_cast<size_t>(micro_batch)]};
  }
};
using Self = SubgraphActor::stateful_pointer<SubgraphState>;

/// With all inputs there, asks the pool once; who needs no slot is ready at once.
void prepare(Self self, int64_t step, int32_t micro_batch) {
  SubgraphState& s = self->state;
  if (!s.core.claim_leases(step, micro_batch)) return;
  const LanePoint at = s.point(step, micro_batch);
  if (s.wiring->num_leases == 0) {
    s.lane.mark_ready(at);
  } else {
    self->send(s.routes->pool, LeaseRequest{s.wiring->lane, at, s.launch, micro_batch});
  }
}

/// The execution's outputs, named for whoever waits for them.
void name_outputs(Self self, LanePoint at, int32_t micro_batch, SubgraphState::Held& held) {
  SubgraphState& s = self->state;
  const ProgramContext& context = s.host->context();
  const graph::Launch& launch = context.launch(s.launch);
  std::shared_ptr<kernels::Event> event;
  if (s.wiring->feeds_other_lane) {
    event = context.lanes->lanes[static_cast<size_t>(launch.lane)].stream->record();
  }
  held.outputs.resize(launch.outputs.size());
  for (size_t j = 0; j < launch.outputs.size(); ++j) {
    TensorHandle& handle = held.outputs[j];
    handle.buffer = launch.outputs[j];
    handle.slot = micro_batch % context.buffer(handle.buffer).num_slots;
    handle.step = at.step;
    handle.micro_batch = micro_batch;
    handle.rank = s.rank;
    handle.incarnation = s.routes->incarnation;
    handle.readiness = {launch.lane, at, event};
    handle.lease.reset();
    if (const int32_t own = s.wiring->output_lease[j]; own >= 0) {
      handle.lease = held.leases[static_cast<size_t>(own)];
    } else if (const int32_t in = s.wiring->output_alias[j]; in >= 0) {
      const int32_t awaited = s.wiring->awaited_index[static_cast<size_t>(in)];
      if (awaited >= 0) handle.lease = held.inputs[static_cast<size_t>(awaited)].lease;
    }
  }
}

void send_handle(Self self, const Probe::Span& span, const Consumer& to, int32_t micro_batch,
                 const TensorHandle& handle) {
  SubgraphState& s = self->state;
  span.sent(
      arrow_id(Arrow::kHandle, s.rank, s.host->id, handle.step, to.launch, to.input, micro_batch));
  self->send(s.routes->subgraphs[static_cast<size_t>(to.launch)],
             HandleReady{to.input, micro_batch, handle});
}

/// Tells those who wait for the launch, or (`complete`) those who wait for its completion: of what
/// a channel brings that is everybody.
void hand_on(Self self, const Probe::Span& span, const SubgraphState::Held& held, bool complete) {
  SubgraphState& s = self->state;
  for (size_t j = 0; j < held.outputs.size(); ++j) {
    const TensorHandle& handle = held.outputs[j];
    const bool last =
        complete ? s.core.last_complete(handle.step) : s.core.last_of_step(handle.step);
    for (const Consumer& c : s.wiring->consumers[j]) {
      if ((c.on_completion || s.wiring->communicates) != complete) continue;
      if (c.edge == graph::EdgeKind::kLastMicroBatch) {
        if (last) send_handle(self, span, c, 0, handle);
      } else if (c.edge == graph::EdgeKind::kPrepared) {
        for (int32_t m = 0; m < c.num_firings; ++m) send_handle(self, span, c, m, handle);
      } else {
        send_handle(self, span, c, handle.micro_batch, handle);
      }
    }
  }
}

/// Other lanes may go on to what the plan starts behind this item.
void open_gates(Self self, LanePoint at, const LaneItem& item) {
  for (const Gate& gate : item.opens) {
    TensorHandle none;
    none.step = at.step;
    none.rank = self->state.rank;
    self->send(self->state.routes->subgraphs[static_cast<size_t>(gate.launch)],
               HandleReady{gate.input, gate.micro_batch, none});
  }
}

Status fire(Self self, const Probe::Span& span, LanePoint at) {
  SubgraphState& s = self->state;
  const ProgramContext& context = s.host->context();
  const LaneItem& item = s.items()[static_cast<size_t>(at.position)];
  const int32_t micro_batch = item.micro_batch;
  SubgraphState::Held& held = s.held[static_cast<size_t>(s.core.place(at.step, micro_batch))];
  SGA_TRY(s.core.on_fired(at.step, micro_batch));
  for (const TensorHandle& in : held.inputs) {
    if (in.readiness.lane != s.wiring->lane && in.readiness.event) {
      context.lanes->lanes[static_cast<size_t>(s.wiring->lane)].stream->wait(*in.readiness.event);
    }
    if (in.lease && in.lease->lane() == s.wiring->lane) in.lease->used(at);
  }
  enqueue_launch(context, s.launch, at.step, micro_batch, s.pointers,
                 pack({WorkKind::kLaunch, s.host->id, s.wiring->lane, micro_batch, at.step}),
                 *s.sink);
  if (s.executions != nullptr) s.executions->note(s.rank, s.launch, micro_batch, at.step);
  name_outputs(self, at, micro_batch, held);
  open_gates(self, at, item);
  if (s.wiring->communicates) return {};
  hand_on(self, span, held, false);
  // From here the stream's order protects what this lane's slots hold.
  if (!s.wiring->feeds_channel) held.outputs.clear();
  held.leases.clear();
  for (TensorHandle& in : held.inputs) {
    if (!in.lease || in.lease->lane() == s.wiring->lane) in = TensorHandle();
  }
  return {};
}

/// Fires while the lane's turn is ours, then passes it on.
void run_enabled(Self self, const Probe::Span& span) {
  SubgraphState& s = self->state;
  while (const auto at = s.lane.take()) {
    if (Status st = fire(self, span, *at); !st.ok()) return fail(self, st, at->step);
    const LaneItem& next = s.items()[static_cast<size_t>(s.lane.cursor().position)];
    if (next.kind == ItemKind::kLaunch && next.launch == s.launch) {
      prepare(self, s.lane.cursor().step, next.micro_batch);
      continue;
    }
    const LanePoint to = s.lane.pass();
    const LaneToken token{s.rank, s.host->id, s.wiring->lane, to};
    span.sent(arrow_id(Arrow::kToken, s.rank, s.host->id, to.step, s.wiring->lane, to.position));
    if (next.kind == ItemKind::kLaunch) {
      self->send(s.routes->subgraphs[static_cast<size_t>(next.launch)], token);
    } else if (next.kind == ItemKind::kFeed) {
      self->send(s.routes->feeder, token);
    } else {
      self->send(s.routes->worker, token);
    }
  }
}

void on_handle(Self self, const HandleReady& msg) {
  SubgraphState& s = self->state;
  const auto span = s.probe.handle(self, "handle_ready", msg.handle.step, msg.micro_batch);
  if (msg.handle.buffer != graph::kNoBuffer) {  // else it opens a gate
    span.received(arrow_id(Arrow::kHandle, s.rank, s.host->id, msg.handle.step, s.launch, msg.input,
                           msg.micro_batch));
  }
  const auto taken = s.core.on_input(msg.input, msg.handle.step, msg.micro_batch);
  if (!taken.ok()) return fail(self, taken.status(), msg.handle.step);
  if (taken->arrival == SubgraphCore::Arrival::kRepeated ||
      taken->arrival == SubgraphCore::Arrival::kLate) {
    return;
  }
  s.held[static_cast<size_t>(taken->place)].inputs[static_cast<size_t>(taken->awaited)] =
      msg.handle;
  if (taken->arrival != SubgraphCore::Arrival::kComplete) return;
  prepare(self, msg.handle.step, msg.micro_batch);
  run_enabled(self, span);
}

void on_token(Self self, const LaneToken& msg) {
  SubgraphState& s = self->state;
  const auto& items = s.items();
  const auto position = static_cast<size_t>(msg.at.position);
  if (position >= items.size() || items[position].launch != s.launch) {
    return fail(self, internal_error("lane token for another"), msg.at.step);
  }
  const int32_t micro_batch = items[position].micro_batch;
  const auto span = s.probe.handle(self, "lane_token", msg.at.step, micro_batch);
  span.received(
      arrow_id(Arrow::kToken, s.rank, s.host->id, msg.at.step, msg.lane, msg.at.position));
  s.probe.stall_if_told();
  if (Status st = s.lane.offer(msg.at); !st.ok()) return fail(self, st, msg.at.step);
  // A launch that awaits no handle learns only here that its step has begun.
  if (s.core.inputs_ready(msg.at.step, micro_batch)) prepare(self, msg.at.step, micro_batch);
  run_enabled(self, span);
}

void on_complete(Self self, const WorkComplete& msg) {
  SubgraphState& s = self->state;
  const WorkName work = unpack(msg.token);
  const auto span = s.probe.handle(self, "work_complete", work.step, work.micro_batch);
  if (!msg.status.ok()) return fail(self, msg.status, work.step);
  if (Status st = s.core.on_complete(work.step, work.micro_batch); !st.ok()) {
    return fail(self, st, work.step);
  }
  SubgraphState::Held& held =
      s.held[static_cast<size_t>(s.core.place(work.step, work.micro_batch))];
  hand_on(self, span, held, true);
  held.outputs.clear();
  held.leases.clear();
  for (TensorHandle& in : held.inputs) in = TensorHandle();
  if (s.host->context().schedule.lanes.size() > 1 && !s.wiring->communicates) {
    self->send(s.routes->pool, LaneProgress{work.lane, s.point(work.step, work.micro_batch)});
  }
}

SubgraphActor::behavior_type subgraph_actor(Self self, const std::shared_ptr<ProgramHost>& host,
                                            graph::LaunchId launch) {
  install_handlers(self);
  SubgraphState& s = self->state;
  const ProgramContext& context = host->context();
  s.name = context.launch(launch).name;
  s.rank = context.rank;
  s.host = host;
  s.launch = launch;
  s.wiring = &context.schedule.launches[static_cast<size_t>(launch)];
  s.sink = host->sinks[static_cast<size_t>(launch)].get();
  s.sink->set_receiver(SubgraphActor(self));
  s.core = SubgraphCore(context.rank, launch, *s.wiring);
  if (host->id == kTraining && !s.wiring->communicates) {
    s.executions = host->shared->executions.get();
  }
  s.held.resize(static_cast<size_t>(s.core.num_places()));
  for (SubgraphState::Held& held : s.held) held.inputs.resize(s.wiring->awaited.size());
  s.probe = Probe(host->shared, host->id == kTraining ? s.name : "validation " + s.name, s.rank);
  return {
      [self](const Wire& msg) { self->state.routes = msg.routes; },
      [self](const HandleReady& msg) { on_handle(self, msg); },
      [self](const SlotsGranted& msg) {
        SubgraphState& st = self->state;
        const auto span = st.probe.handle(self, "slots_granted", msg.at.step, msg.micro_batch);
        st.held[static_cast<size_t>(st.core.place(msg.at.step, msg.micro_batch))].leases =
            msg.leases;
        st.lane.mark_ready(msg.at);
        run_enabled(self, span);
      },
      [self](const LaneToken& msg) { on_token(self, msg); },
      [self](const WorkComplete& msg) { on_complete(self, msg); },
  };
}

}  // namespace

SubgraphActor spawn_subgraph(caf::local_actor* parent, const std::shared_ptr<ProgramHost>& host,
                             graph::LaunchId launch) {
  return parent->spawn<caf::linked + caf::monitored>(subgraph_actor, host, launch);
}

}  // namespace sgactor::actors
