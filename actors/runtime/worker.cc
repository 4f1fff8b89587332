#include "actors/runtime/worker.h"

#include "actors/core/lane_core.h"
#include "actors/core/rank_step_core.h"
#include "actors/runtime/gradient_check.h"
#include "actors/runtime/shell.h"
#include "graph/base/log.h"

#include <array>
#include <optional>
#include <utility>

namespace sgactor::actors {
namespace {

/// One program of one rank under way.
struct ProgramRun {
  std::shared_ptr<ProgramHost> host;
  std::shared_ptr<const Routes> routes;
  RankStepCore core;
  std::vector<LaneCore> lanes;
  std::optional<int64_t> wanted;                        // to begin once its data is there
  std::array<std::optional<StepPrepared>, 2> prepared;  // by step % 2
  StepPrepared current;
  int64_t kernel_ns_before = 0;

  [[nodiscard]] const ProgramContext& context() const { return host->context(); }
  [[nodiscard]] const LaneItem& item(int32_t lane, int32_t position) const {
    return context().schedule.lanes[static_cast<size_t>(lane)][static_cast<size_t>(position)];
  }
};

/// A pass over the held-out micro-batches; each is a step of the validation program.
struct ValidationRun {
  int64_t training_step = 0;
  int64_t num_left = 0;
  double loss_sum = 0;  // nats
  int64_t valid_tokens = 0;
};

struct RankRun {
  RankHost host;
  RunShared::RankRecord* record = nullptr;
  std::vector<ProgramRun> programs;  // index: ProgramId
  WriterActor writer;
  ValidationRun validation;
  // What has been told last; told again when the run resumes.
  int64_t voted = 0;
  // Read before the vote; written by the device's service, which is done with it before it tells.
  std::shared_ptr<RankNumbers> at_vote = std::make_shared<RankNumbers>();
  GradientChecked verified;  // of the step that was verified last
  int64_t checking = 0;      // the newest step whose check was begun
  int64_t reexecuted_before = 0;
  std::optional<StepDone> done;
  std::optional<SnapshotEnqueued> enqueued;
  std::optional<ValidationDone> validated;
};

struct WorkerState {
  std::string name = "worker";
  int32_t rank = -1;  // hosts several; failures of its own name none
  std::shared_ptr<WorkerHost> host;
  CoordinatorActor coordinator;
  std::vector<RankRun> ranks;
  int64_t generation = 1;
  bool told_of_mirror = false;
  Probe probe;

  RankRun* find(int32_t r) {
    for (RankRun& run : ranks) {
      if (run.host.rank == r) return &run;
    }
    return nullptr;
  }
  /// Null if a message names what this worker does not host.
  ProgramRun* find(int32_t r, ProgramId program) {
    RankRun* run = find(r);
    if (run == nullptr || program < 0 || static_cast<size_t>(program) >= run->programs.size()) {
      return nullptr;
    }
    return &run->programs[static_cast<size_t>(program)];
  }
};
using Self = WorkerActor::stateful_pointer<WorkerState>;
using Phase = RunShared::Phase;

// --- start ---

ProgramRun spawn_program(Self self, const std::shared_ptr<ProgramHost>& host, int64_t incarnation) {
  ProgramRun run;
  run.host = host;
  const ProgramContext& context = host->context();
  host->worker_sink->set_receiver(WorkerActor(self));
  auto routes = std::make_shared<Routes>();
  routes->rank = context.rank;
  routes->incarnation = incarnation;
  routes->worker = WorkerActor(self);
  routes->pool = spawn_pool(self, host);
  for (size_t l = 0; l < context.program->launches.size(); ++l) {
    routes->subgraphs.push_back(spawn_subgraph(self, host, static_cast<graph::LaunchId>(l)));
  }
  routes->feeder = spawn_feeder(self, host);
  run.routes = routes;
  run.core = RankStepCore(context.schedule);
  run.lanes.resize(context.schedule.lanes.size());
  // The feeder last: it starts work, and whoever it talks to must know its routes by then.
  const Wire wire{run.routes};
  self->send(routes->pool, wire);
  for (const SubgraphActor& s : routes->subgraphs) self->send(s, wire);
  self->send(routes->feeder, wire);
  return run;
}

/// Operations that wait for a recovery tell why: it may be that nobody else has seen it.
void listen(const RankHost& rank, const CoordinatorActor& coordinator) {
  for (LaneSet::Lane& lane : rank.training->context().lanes->lanes) {
    if (!lane.channel) continue;
    lane.channel->on_suspended([coordinator, rank = rank.rank](const Status& why) {
      if (why.code() != Code::kDisconnected) return;
      caf::anon_send(coordinator, FaultReport{rank, why, true});
    });
  }
}

/// The step before the first, if its update was done again here: who did it first may be gone
/// without having told.
void tell_redone(Self self, RankRun& rank) {
  if (!rank.host.redone) return;
  const RedoneStep& r = *rank.host.redone;
  rank.done = StepDone{rank.host.rank, rank.host.incarnation, r.step, r.numbers, 0,
                       r.valid_tokens, r.sample_hash,         0};
  self->send(self->state.coordinator, *rank.done);
}

void tell_ready(Self self, int64_t generation) {
  for (const RankRun& rank : self->state.ranks) {
    self->send(self->state.coordinator,
               RankReady{rank.host.rank, rank.host.incarnation, generation});
  }
}

void spawn_ranks(Self self) {
  WorkerState& s = self->state;
  s.generation = s.host->generation.load();
  for (const RankHost& host : s.host->ranks) {
    RankRun& rank = s.ranks.emplace_back();
    rank.host = host;
    rank.record = &s.probe.shared().new_rank(host.rank);
    rank.reexecuted_before = s.probe.shared().reexecuted(host.rank);
    listen(host, s.coordinator);
    rank.programs.push_back(spawn_program(self, host.training, host.incarnation));
    if (host.validation) {
      rank.programs.push_back(spawn_program(self, host.validation, host.incarnation));
    }
    if (host.writer) {
      rank.writer = spawn_writer(self, host.writer, WorkerActor(self), s.coordinator);
    }
  }
  tell_ready(self, s.generation);
  for (RankRun& rank : s.ranks) tell_redone(self, rank);
}

// --- a step of a program ---

void send_token(Self self, const ProgramRun& run, const Probe::Span& span, int32_t lane,
                LanePoint at) {
  const int32_t rank = run.context().rank;
  const LaneToken token{rank, run.host->id, lane, at};
  const LaneItem& item = run.item(lane, at.position);
  span.sent(arrow_id(Arrow::kToken, rank, run.host->id, at.step, lane, at.position));
  if (item.kind == ItemKind::kLaunch) {
    self->send(run.routes->subgraphs[static_cast<size_t>(item.launch)], token);
  } else if (item.kind == ItemKind::kFeed) {
    self->send(run.routes->feeder, token);
  } else {
    self->send(run.routes->worker, token);
  }
}

/// A worker hosts a handful of ranks: the micro-batch field of its own work carries which.
int32_t index_of(Self self, int32_t rank) {
  return static_cast<int32_t>(self->state.find(rank) - self->state.ranks.data());
}

/// Numbers of the step and zeros for its accumulators go on the stream before its first launch.
void enqueue_step_start(const ProgramRun& run, int32_t index, int64_t step) {
  const ProgramContext& context = run.context();
  kernels::Stream& stream = *context.lanes->lanes[0].stream;
  const uint64_t quiet = pack({WorkKind::kQuiet, run.host->id, 0, index, step});
  const std::vector<std::byte*>& staged =
      run.host->setup.staging->scalars[static_cast<size_t>(step % 2)];
  for (size_t i = 0; i < context.scalars.size(); ++i) {
    const TensorPlace& scalar = context.scalars[i];
    stream.copy(scalar.address, staged[i], scalar.bytes, quiet, *run.host->worker_sink);
  }
  for (const TensorPlace& t : context.accumulators) {
    stream.fill_zero(t.address, t.bytes, quiet, *run.host->worker_sink);
  }
}

/// Begins the wanted step if its data is there.
void begin_if_prepared(Self self, ProgramRun& run, const Probe::Span& span) {
  if (!run.wanted) return;
  const int64_t step = *run.wanted;
  const std::optional<StepPrepared>& prepared = run.prepared[static_cast<size_t>(step % 2)];
  if (!prepared || prepared->step != step) return;
  run.wanted.reset();
  run.current = *prepared;
  if (Status st = run.core.begin(step); !st.ok()) return fail(self, st, step);
  run.kernel_ns_before = run.context().lanes->lanes[0].kernel_ns.load();
  enqueue_step_start(run, index_of(self, run.context().rank), step);
  for (size_t lane = 0; lane < run.lanes.size(); ++lane) {
    const LaneSet::Lane& l = run.context().lanes->lanes[lane];
    if (l.channel) l.channel->set_generation(self->state.generation);
    send_token(self, run, span, static_cast<int32_t>(lane), {step, 0});
  }
  for (const Gate& gate : run.context().schedule.opens_at_begin) {
    TensorHandle none;
    none.step = step;
    none.rank = run.context().rank;
    self->send(run.routes->subgraphs[static_cast<size_t>(gate.launch)],
               HandleReady{gate.input, gate.micro_batch, none});
  }
}

/// The lane has come to a commit or an end: learn when all before it is complete.
void on_token(Self self, const LaneToken& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "lane_token", msg.at.step);
  span.received(
      arrow_id(Arrow::kToken, msg.rank, msg.program, msg.at.step, msg.lane, msg.at.position));
  ProgramRun* run = s.find(msg.rank, msg.program);
  if (run == nullptr) return fail(self, internal_error("lane token of a rank not hosted"));
  if (Status st = run->lanes[static_cast<size_t>(msg.lane)].offer(msg.at); !st.ok()) {
    return fail(self, st, msg.at.step);
  }
  const LaneItem& item = run->item(msg.lane, msg.at.position);
  const WorkKind kind = item.kind == ItemKind::kCommit ? WorkKind::kCommit : WorkKind::kEnd;
  LaneSet::Lane& lane = run->context().lanes->lanes[static_cast<size_t>(msg.lane)];
  const WorkName work{kind, msg.program, msg.lane, index_of(self, msg.rank), msg.at.step};
  if (lane.channel) return lane.channel->drain(pack(work), *run->host->worker_sink);
  lane.stream->fill_zero(lane.marker, sizeof(uint64_t), pack(work), *run->host->worker_sink);
}

/// Runs what a strategy does between steps (`hook`, null: nothing) and reads what the step reports,
/// away from the actor.
void read_numbers(Self self, const ProgramRun& run, StepHook* hook) {
  auto out = std::make_shared<NumbersRead>();
  out->rank = run.context().rank;
  out->program = run.host->id;
  out->step = run.core.step();
  BlockingService& service = hook != nullptr ? hook->service() : *run.host->services.device;
  service.submit(
      [host = run.host, out, hook, generation = self->state.generation]() -> Status {
        if (hook != nullptr) SGA_TRY(hook->after_step(out->step, generation));
        SGA_ASSIGN(out->numbers, step_numbers(host->context()));
        return Status();
      },
      [worker = WorkerActor(self), out](const Status& status) {
        out->status = status;
        caf::anon_send(worker, *out);
      });
}

void vote(Self self, RankRun& rank, const Probe::Span& span, int64_t step) {
  const WorkerState& s = self->state;
  rank.voted = step;
  rank.record->phase = Phase::kVoted;
  span.sent(arrow_id(Arrow::kVote, rank.host.rank, 0, step));
  Vote msg{rank.host.rank, rank.host.incarnation, s.generation, step};
  if (rank.verified.step == step) {
    msg.posted = rank.verified.posted;
    msg.checked = rank.verified.of;
    msg.checked_hash = rank.verified.hash;
  }
  if (rank.host.votes_loss) {
    msg.loss = rank.at_vote->loss;
    msg.has_loss = rank.at_vote->has_loss;
  }
  self->send(s.coordinator, msg);
}

/// Everything before the commit is complete, so that the device is free and what was posted stays:
/// the posts of `of` are executed once more.
void check_posts(Self self, const RankRun& rank, int32_t of, int64_t step, bool again) {
  GradientChecked result;
  result.rank = rank.host.rank;
  result.of = of;
  result.step = step;
  result.again = again;
  result.generation = self->state.generation;
  const auto lanes = rank.host.training->context().lanes;
  rank.host.check->submit(
      of, step, self->state.generation,
      [worker = WorkerActor(self), result, lanes](const Result<uint64_t>& hash) mutable {
        result.status = hash.status();
        if (hash.ok()) result.hash = *hash;
        for (const LaneSet::Lane& lane : lanes->lanes) {
          if (lane.channel) result.posted += lane.channel->posted(result.step);
        }
        caf::anon_send(worker, result);
      });
}

/// What the rank has heard goes to `to`, who needs it to execute its posts. Where there is no such
/// record the check has failed: `to` would wait for it in vain.
void offer_record(Self self, const RankRun& rank, int32_t to, int64_t step) {
  GradientChecked failed;
  failed.rank = rank.host.rank;
  failed.of = rank.host.rank;
  failed.step = step;
  failed.generation = self->state.generation;
  rank.host.check->offer(to, step, failed.generation,
                         [worker = WorkerActor(self), failed](const Status& why) mutable {
                           failed.status = why;
                           caf::anon_send(worker, failed);
                         });
}

/// Two executions of each rank's posts: the own one, and that of the rank that it tells what it has
/// heard. Where that takes messages, both begin again in the next generation if one is lost.
void begin_check(Self self, RankRun& rank, int64_t step) {
  const graph::Plan& plan = *rank.programs[kTraining].context().plan;
  const int32_t me = rank.host.rank;
  rank.checking = step;
  if (rank.host.check->exchanges()) {
    offer_record(self, rank, checker_of(plan, me), step);
  }
  check_posts(self, rank, buddy_of(plan, me), step, false);
}

/// Everything before the commit is complete: its results are kept before the rank votes.
void keep_inputs(Self self, const RankRun& rank, const ProgramRun& run, int64_t step) {
  run.host->services.device->submit(
      [inputs = rank.host.update_inputs, step, tokens = run.current.valid_tokens,
       samples = run.current.sample_hash] { return inputs->save(step, tokens, samples); },
      [worker = WorkerActor(self), rank = rank.host.rank, step](const Status& status) {
        caf::anon_send(worker, InputsKept{rank, step, status});
      });
}

/// The micro-batches are done, so that the loss is known.
void read_loss(Self self, const RankRun& rank, const ProgramRun& run, int64_t step) {
  run.host->services.device->submit(
      [host = run.host, out = rank.at_vote]() -> Status {
        SGA_ASSIGN(*out, step_numbers(host->context()));
        return Status();
      },
      [worker = WorkerActor(self), rank = rank.host.rank, step](const Status& status) {
        caf::anon_send(worker, InputsKept{rank, step, status});
      });
}

void finish_step(Self self, RankRun& rank, const ProgramRun& run, const Probe::Span& span,
                 int64_t step) {
  if (rank.host.update_inputs) return keep_inputs(self, rank, run, step);
  if (rank.host.votes_loss) return read_loss(self, rank, run, step);
  vote(self, rank, span, step);
}

void on_checked(Self self, const GradientChecked& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "gradient_checked", msg.step);
  RankRun* rank = s.find(msg.rank);
  if (rank == nullptr) return fail(self, internal_error("a check of a rank not hosted"));
  ProgramRun& run = rank->programs[kTraining];
  if (run.core.step() != msg.step) return;  // decided without it
  // What begins again in each generation counts in the one it is asked for in.
  const bool repeated = msg.again || rank->host.check->exchanges();
  if (repeated && msg.generation < s.generation) return;
  const Code code = msg.status.code();
  const bool lost = code == Code::kDisconnected || code == Code::kCancelled;
  if (!msg.status.ok() && lost && rank->host.check->exchanges()) {
    // As operations of channels, it waits for the next generation.
    if (code == Code::kCancelled) return;
    self->send(s.coordinator, FaultReport{msg.rank, msg.status, true});
    return;
  }
  if (!msg.status.ok()) return fail(self, at_actor(msg.status, msg.rank, s.name, msg.step));
  if (msg.again) {
    Vote vote{msg.rank, rank->host.incarnation, s.generation, msg.step};
    vote.posted = msg.posted;
    vote.checked = msg.of;
    vote.checked_hash = msg.hash;
    self->send(s.coordinator, vote);
    return;
  }
  rank->verified = msg;
  // Checked again after a fence: all else is done.
  if (rank->voted == msg.step) return vote(self, *rank, span, msg.step);
  finish_step(self, *rank, run, span, msg.step);
}

/// What was heard goes to the umpire, who executes again.
void on_recheck(Self self, const Recheck& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "recheck", msg.step);
  const RankRun* of = s.find(msg.of);
  if (of != nullptr && msg.of != msg.rank && of->host.check && of->host.check->exchanges() &&
      of->checking == msg.step) {
    offer_record(self, *of, msg.rank, msg.step);
  }
  // Told to all workers: whose rank it is answers.
  const RankRun* rank = s.find(msg.rank);
  if (rank == nullptr || !rank->host.check || rank->voted != msg.step) return;
  check_posts(self, *rank, msg.of, msg.step, true);
}

void on_inputs_kept(Self self, const InputsKept& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "inputs_kept", msg.step);
  RankRun* rank = s.find(msg.rank);
  if (rank == nullptr) return fail(self, internal_error("inputs of a rank not hosted"));
  if (!msg.status.ok() && rank->host.votes_loss) {
    return fail(self, at_actor(msg.status, msg.rank, s.name, msg.step));
  }
  if (!msg.status.ok() && !std::exchange(s.told_of_mirror, true)) {
    log::warn("update inputs of step {} are not kept: {}", msg.step, msg.status.message());
  }
  vote(self, *rank, span, msg.step);
}

void on_complete(Self self, const WorkComplete& msg) {
  WorkerState& s = self->state;
  const WorkName work = unpack(msg.token);
  const auto span = s.probe.handle(self, "work_complete", work.step);
  const auto index = static_cast<size_t>(work.micro_batch);
  if (index >= s.ranks.size()) return fail(self, internal_error("work of a rank not hosted"));
  RankRun& rank = s.ranks[index];
  if (!msg.status.ok()) {
    return fail(self, at_actor(msg.status, rank.host.rank, s.name, work.step));
  }
  ProgramRun& run = rank.programs[static_cast<size_t>(work.program)];
  const bool commit = work.kind == WorkKind::kCommit;
  const auto event =
      run.core.on_lane_complete(work.lane, work.step, commit ? ItemKind::kCommit : ItemKind::kEnd);
  if (!event.ok()) return fail(self, event.status(), work.step);
  LaneCore& lane = run.lanes[static_cast<size_t>(work.lane)];
  if (!commit) lane.pass();  // parked: the next step starts a new turn
  if (*event == RankStepCore::Event::kVote) {
    if (rank.host.check && work.step % rank.host.verify_interval == 0) {
      return begin_check(self, rank, work.step);
    }
    finish_step(self, rank, run, span, work.step);
  } else if (*event == RankStepCore::Event::kDone) {
    read_numbers(self, run, work.program == kTraining ? rank.host.step_hook.get() : nullptr);
  }
}

void commit_rank(Self self, RankRun& rank, const Probe::Span& span, int64_t step) {
  ProgramRun& run = rank.programs[kTraining];
  const auto fresh = run.core.on_commit(step);
  if (!fresh.ok()) return fail(self, fresh.status(), step);
  if (!*fresh) return;
  rank.record->phase = Phase::kUpdating;
  if (rank.host.state) rank.host.state->leave();
  // Before the update changes what the log only points to.
  for (LaneSet::Lane& lane : run.context().lanes->lanes) {
    if (lane.channel) lane.channel->forget(step);
  }
  for (size_t lane = 0; lane < run.lanes.size(); ++lane) {
    LaneCore& core = run.lanes[lane];
    if (!core.holds_token()) continue;
    core.mark_ready(core.cursor());
    if (!core.take()) continue;
    send_token(self, run, span, static_cast<int32_t>(lane), core.pass());
  }
}

void on_commit(Self self, const Commit& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "commit", msg.step);
  for (RankRun& rank : s.ranks) {
    span.received(arrow_id(Arrow::kCommit, rank.host.rank, 0, msg.step));
    commit_rank(self, rank, span, msg.step);
  }
}

void on_resume(Self self, const Resume& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "resume", msg.committed);
  if (msg.generation < s.generation) return;  // another fence has followed
  s.generation = msg.generation;
  for (RankRun& rank : s.ranks) {
    ProgramRun& run = rank.programs[kTraining];
    rank.reexecuted_before = s.probe.shared().reexecuted(rank.host.rank);
    if (run.core.step() == msg.committed && run.core.awaits_commit()) {
      commit_rank(self, rank, span, msg.committed);
    }
    for (LaneSet::Lane& lane : run.context().lanes->lanes) {
      if (lane.channel) lane.channel->resume(msg.generation);
    }
    // What was done before what is voted for: votes of all may lead to the next done at once.
    if (rank.done) self->send(s.coordinator, *rank.done);
    const bool checks = rank.checking > msg.committed && rank.host.check->exchanges();
    if (checks) {
      begin_check(self, rank, rank.checking);
    } else if (rank.voted > msg.committed) {
      vote(self, rank, span, rank.voted);
    }
    if (rank.enqueued) self->send(s.coordinator, *rank.enqueued);
    if (rank.validated) self->send(s.coordinator, *rank.validated);
  }
}

void next_validation_batch(Self self, ProgramRun& run, const Probe::Span& span) {
  run.wanted = run.core.step() < 0 ? run.host->first_step : run.core.step() + 1;
  begin_if_prepared(self, run, span);
}

void on_numbers(Self self, const NumbersRead& msg) {
  WorkerState& s = self->state;
  const auto span = s.probe.handle(self, "numbers_read", msg.step);
  if (!msg.status.ok()) return fail(self, msg.status, msg.step);
  RankRun& rank = *s.find(msg.rank);
  ProgramRun& run = rank.programs[static_cast<size_t>(msg.program)];
  if (msg.program == kTraining) {
    const int64_t kernel_ns = run.context().lanes->lanes[0].kernel_ns.load() - run.kernel_ns_before;
    span.sent(arrow_id(Arrow::kDone, msg.rank, 0, msg.step));
    rank.done = StepDone{msg.rank,
                         rank.host.incarnation,
                         msg.step,
                         msg.numbers,
                         kernel_ns,
                         run.current.valid_tokens,
                         run.current.sample_hash,
                         s.probe.shared().reexecuted(msg.rank) - rank.reexecuted_before};
    rank.record->phase = Phase::kIdle;
    if (rank.host.state) rank.host.state->reach(*rank.done);
    self->send(s.coordinator, *rank.done);
    return;
  }
  ValidationRun& v = rank.validation;
  const int64_t valid = run.current.valid_tokens;
  v.loss_sum += static_cast<double>(msg.numbers.loss) * static_cast<double>(valid);
  v.valid_tokens += valid;
  if (--v.num_left > 0) return next_validation_batch(self, run, span);
  rank.validated =
      ValidationDone{msg.rank, v.training_step, v.loss_sum / static_cast<double>(v.valid_tokens)};
  rank.record->phase = Phase::kIdle;
  self->send(s.coordinator, *rank.validated);
}

void on_begin_validation(Self self, const BeginValidation& msg) {
  const auto span = self->state.probe.handle(self, "begin_validation", msg.step);
  for (RankRun& rank : self->state.ranks) {
    if (rank.programs.size() <= kValidation) continue;
    // A coordinator that has taken the run over asks for what the one before has asked for.
    if (rank.validation.num_left > 0 && rank.validation.training_step == msg.step) continue;
    if (rank.validated && rank.validated->step == msg.step) {
      self->send(self->state.coordinator, *rank.validated);
      continue;
    }
    rank.validation = {msg.step, msg.num_batches, 0, 0};
    rank.record->phase = Phase::kValidating;
    next_validation_batch(self, rank.programs[kValidation], span);
  }
}

/// Links bring the exits of both sides: only the coordinator's is an order. What becomes of an
/// actor of ours its down message says.
void watch(Self self) {
  self->set_exit_handler([self](caf::exit_msg& msg) {
    if (msg.source == self->state.coordinator) self->quit(msg.reason);
  });
  self->set_down_handler([self](caf::down_msg& msg) {
    Status status = from_caf(msg.reason);
    if (status.ok()) status = internal_error("an actor ended before the run did");
    self->send(self->state.coordinator, FaultReport{status.origin().rank, status});
  });
}

WorkerActor::behavior_type worker_actor(Self self, const std::shared_ptr<WorkerHost>& host,
                                        const CoordinatorActor& coordinator) {
  install_handlers(self);
  watch(self);
  WorkerState& s = self->state;
  s.host = host;
  s.coordinator = coordinator;
  s.probe = Probe(host->shared, "worker");
  spawn_ranks(self);
  return {
      [self](const BeginStep& msg) {
        WorkerState& st = self->state;
        const auto span = st.probe.handle(self, "begin_step", msg.step);
        st.generation = msg.generation;
        if (msg.step > st.host->begun) st.host->begun = msg.step;
        if (msg.step == st.host->trace_until) st.probe.shared().tracer.enable(false);
        for (RankRun& rank : st.ranks) {
          span.received(arrow_id(Arrow::kBegin, rank.host.rank, 0, msg.step));
          ProgramRun& run = rank.programs[kTraining];
          if (!st.probe.shared().allocations_at_start) {
            st.probe.shared().allocations_at_start = run.context().backend->allocation_stats();
          }
          if (msg.step <= run.core.step()) continue;  // sent again
          run.wanted = msg.step;
          rank.record->phase = Phase::kComputing;
          begin_if_prepared(self, run, span);
        }
      },
      [self](const Commit& msg) { on_commit(self, msg); },
      [self](const BeginValidation& msg) { on_begin_validation(self, msg); },
      [self](const TakeSnapshot& msg) {
        const auto span = self->state.probe.handle(self, "take_snapshot", msg.step);
        for (RankRun& rank : self->state.ranks) self->send(rank.writer, msg);
      },
      [self](const SnapshotEnqueued& msg) {
        const auto span = self->state.probe.handle(self, "snapshot_enqueued", msg.step);
        if (RankRun* rank = self->state.find(msg.rank)) rank->enqueued = msg;
        self->send(self->state.coordinator, msg);
      },
      [self](const Finish&) {
        for (RankRun& rank : self->state.ranks) {
          self->send(rank.programs[kTraining].routes->pool, AskPoolReport{});
        }
      },
      [self](const LaneToken& msg) { on_token(self, msg); },
      [self](const WorkComplete& msg) { on_complete(self, msg); },
      [self](const StepPrepared& msg) {
        const auto span = self->state.probe.handle(self, "step_prepared", msg.step);
        ProgramRun* run = self->state.find(msg.rank, msg.program);
        if (run == nullptr) return fail(self, internal_error("data of a rank not hosted"));
        run->prepared[static_cast<size_t>(msg.step % 2)] = msg;
        begin_if_prepared(self, *run, span);
      },
      [self](const NumbersRead& msg) { on_numbers(self, msg); },
      [self](const InputsKept& msg) { on_inputs_kept(self, msg); },
      [self](const PoolReport& msg) {
        self->send(self->state.coordinator, RankFinished{msg.rank, msg.stats});
      },
      [self](const Rejoined& msg) { tell_ready(self, msg.generation); },
      [self](const Resume& msg) { on_resume(self, msg); },
      [self](const Recheck& msg) { on_recheck(self, msg); },
      [self](const GradientChecked& msg) { on_checked(self, msg); },
  };
}

}  // namespace

WorkerActor spawn_worker(caf::local_actor* parent, const std::shared_ptr<WorkerHost>& host,
                         const CoordinatorActor& coordinator) {
  return parent->spawn<caf::linked + caf::monitored>(worker_actor, host, coordinator);
}

}  // namespace sgactor::actors
