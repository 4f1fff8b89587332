#include "actors/runtime/coordinator.h"

#include "actors/core/commit_core.h"
#include "actors/runtime/shell.h"
#include "actors/runtime/update_inputs.h"
#include "graph/base/log.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace sgactor::actors {
namespace {

struct CoordinatorState {
  CoordinatorState() = default;
  CoordinatorState(const CoordinatorState&) = delete;
  CoordinatorState& operator=(const CoordinatorState&) = delete;
  /// However the actor ends, whoever waits for the run hears of it.
  ~CoordinatorState() {
    if (host) finish(internal_error("the coordinator ended before the run did"));
  }
  void finish(const Status& status) {
    if (finished) return;
    finished = true;
    outcome.status = status;
    outcome.last_step = steps.last_done();
    outcome.interrupted = steps.interrupted();
    outcome.paused = steps.paused();
    host->on_finished(outcome);
  }

  std::string name = "coordinator";
  int32_t rank = -1;
  std::shared_ptr<CoordinatorHost> host;
  std::vector<WorkerActor> workers;
  StepCore steps;
  CommitCore commits;
  RunOutcome outcome;
  bool finished = false;
  std::set<int32_t> ready;
  int32_t num_waited = 0;  // answers still missing to the action under way
  // The checkpoint on its way to disk, one at a time: parts of the ranks, by rank.
  std::optional<CheckpointCommitted> writing;
  bool writing_mirror = false;
  std::vector<std::optional<std::string>> parts;
  bool mirror_waits = false;    // the one that waits is a mirror
  bool snapshot_waits = false;  // for the one before it to be whole
  bool finishing = false;
  int64_t begin_ns = 0;
  std::vector<StepDone> done;  // of the open step, by rank
  Probe probe;
};
using Self = CoordinatorActor::stateful_pointer<CoordinatorState>;

/// The run is over, one way or the other: tell, then end; links end all others.
void end_run(Self self, const Status& status) {
  self->state.finish(status);
  self->quit(caf::exit_reason::user_shutdown);
}

int64_t now_ns(Self self) { return self->clock().now().time_since_epoch().count(); }

template <class Message>
void tell_workers(Self self, const Message& msg) {
  for (const WorkerActor& w : self->state.workers) self->send(w, msg);
}

void ask_for_reports(Self self) {
  CoordinatorState& s = self->state;
  if (!s.finishing || s.writing) return;
  s.outcome.pools.resize(s.host->placements.size());
  s.num_waited = s.host->num_ranks();
  tell_workers(self, Finish{});
}

/// Storage that is slower than the interval between checkpoints holds the run back here: the
/// alternative is to lose a checkpoint that was asked for.
void take_snapshot(Self self, bool mirror = false) {
  CoordinatorState& s = self->state;
  s.snapshot_waits = s.writing.has_value();
  s.mirror_waits = s.snapshot_waits && mirror;
  if (s.snapshot_waits) return;
  s.writing_mirror = mirror;
  s.writing = CheckpointCommitted{s.steps.last_done(), {}, {}, 0, 0, 0};
  s.parts.assign(s.host->placements.size(), std::nullopt);
  s.num_waited = s.host->num_ranks();
  tell_workers(self, TakeSnapshot{s.steps.last_done(), mirror ? s.host->mirror.root : ""});
}

void begin_step(Self self, const Probe::Span& span) {
  CoordinatorState& s = self->state;
  const int64_t step = s.steps.step();
  s.begin_ns = now_ns(self);
  s.num_waited = s.host->num_ranks();
  for (int32_t r = 0; r < s.host->num_ranks(); ++r) span.sent(arrow_id(Arrow::kBegin, r, 0, step));
  tell_workers(self, BeginStep{step, s.commits.generation()});
}

/// Does what comes next.
void advance(Self self, const Probe::Span& span) {
  CoordinatorState& s = self->state;
  const bool stop = s.host->stop != nullptr && s.host->stop->load();
  const bool pause = s.host->pause != nullptr && s.host->pause->load();
  switch (s.steps.next(stop, pause)) {
    case StepCore::Action::kBeginStep:
      return begin_step(self, span);
    case StepCore::Action::kCheckpoint:
      return take_snapshot(self);
    case StepCore::Action::kMirror:
      // One that is due while another is under way would hold the run back: left out.
      if (s.writing && !s.steps.paused()) return advance(self, span);
      return take_snapshot(self, true);
    case StepCore::Action::kValidate:
      return tell_workers(self, BeginValidation{s.steps.last_done(), s.host->validation_batches});
    case StepCore::Action::kFinish:
      s.finishing = true;
      return ask_for_reports(self);
  }
}

void on_vote(Self self, const Vote& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "vote", msg.step);
  span.received(arrow_id(Arrow::kVote, msg.rank, 0, msg.step));
  const auto vote = s.commits.on_vote(msg.rank, msg.incarnation, msg.generation, msg.step);
  if (!vote.ok()) return end_run(self, vote.status());
  if (*vote != CommitCore::Vote::kAll) return;
  s.host->services.journal->submit(
      [journal = s.host->journal, record = s.commits.record()] { return journal->append(record); },
      [coordinator = CoordinatorActor(self), step = msg.step](const Status& status) {
        caf::anon_send(coordinator, JournalWritten{step, status});
      });
}

void on_journal_written(Self self, const JournalWritten& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "journal_written", msg.step);
  if (!msg.status.ok()) return end_run(self, msg.status);
  if (Status st = s.commits.on_durable(msg.step); !st.ok()) return end_run(self, st);
  for (int32_t r = 0; r < s.host->num_ranks(); ++r) {
    span.sent(arrow_id(Arrow::kCommit, r, 0, msg.step));
  }
  tell_workers(self, Commit{msg.step, s.commits.generation()});
}

/// Each data-parallel rank has the loss of its own samples, the same on all of its tensor-parallel
/// ranks and on the last stage only.
float sum_losses(const CoordinatorState& s) {
  std::vector<std::pair<int32_t, float>> by_dp;
  for (size_t r = 0; r < s.done.size(); ++r) {
    const graph::RankPlacement& place = s.host->placements[r];
    const RankNumbers& numbers = s.done[r].numbers;
    if (numbers.has_loss && place.tp == 0) by_dp.emplace_back(place.dp, numbers.loss);
  }
  std::sort(by_dp.begin(), by_dp.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<float> losses;
  for (const auto& [dp, loss] : by_dp) losses.push_back(loss);
  return tree_sum_losses(losses);
}

StepReport make_report(Self self) {
  CoordinatorState& s = self->state;
  int64_t kernel_ns = 0;
  for (const StepDone& d : s.done) kernel_ns = std::max(kernel_ns, d.kernel_ns);
  const StepDone& first = s.done.front();
  StepReport report;
  report.step = first.step;
  report.loss = sum_losses(s);
  report.grad_norm = first.numbers.grad_norm;
  report.lr = first.numbers.lr;
  report.tokens = first.tokens;
  report.step_ms = static_cast<double>(now_ns(self) - s.begin_ns) / 1e6;
  report.kernel_ms = static_cast<double>(kernel_ns) / 1e6;
  report.generation = s.commits.generation();
  report.sample_hash = first.sample_hash;
  return report;
}

void on_step_done(Self self, const StepDone& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "step_done", msg.step);
  span.received(arrow_id(Arrow::kDone, msg.rank, 0, msg.step));
  if (msg.rank < 0 || msg.rank >= s.host->num_ranks()) {
    return end_run(self, internal_error("a step of a rank that does not exist"));
  }
  StepDone& done = s.done[static_cast<size_t>(msg.rank)];
  if (done.step >= msg.step) return;  // sent again
  done = msg;
  if (--s.num_waited > 0) return;
  if (Status st = s.steps.on_step_done(msg.step); !st.ok()) return end_run(self, st);
  const StepReport report = make_report(self);
  s.outcome.step_seconds += report.step_ms / 1e3;
  s.outcome.kernel_seconds += report.kernel_ms / 1e3;
  if (msg.step + 1 == s.host->policy.first_step + s.host->trace_steps) {
    s.host->shared->tracer.enable(false);
  }
  if (s.host->observer != nullptr) s.host->observer->on_step(report);
  advance(self, span);
}

/// Update inputs that not even the oldest copy needs.
void prune_kept_inputs(const std::string& mirror_root) {
  const auto copies = transport::list_checkpoints(mirror_root);
  if (!copies.ok() || copies->empty()) return;
  prune_inputs(mirror_root, copies->front().step);
}

/// All ranks' parts are on disk: makes the checkpoint whole, away from the actor.
void commit_checkpoint(Self self) {
  CoordinatorState& s = self->state;
  auto result = std::make_shared<CheckpointCommitted>(*s.writing);
  const CheckpointTarget& to = s.writing_mirror ? s.host->mirror : s.host->checkpoints;
  std::vector<std::string> parts;
  for (std::optional<std::string>& p : s.parts) parts.push_back(std::move(*p));
  s.host->services.storage->submit(
      [host = s.host, &to, result, parts = std::move(parts)]() -> Status {
        transport::CheckpointInfo info = host->checkpoints.info;
        info.step = result->step;
        info.data_position = result->step;
        SGA_ASSIGN(result->path, transport::commit_checkpoint(to.root, std::move(info), parts));
        SGA_TRY(transport::prune_checkpoints(to.root, to.keep));
        if (&to == &host->mirror) prune_kept_inputs(to.root);
        return {};
      },
      [coordinator = CoordinatorActor(self), result](const Status& status) {
        result->status = status;
        caf::anon_send(coordinator, *result);
      });
}

/// The snapshot under way has come to its end, and the next may begin.
void on_written(Self self, const CheckpointCommitted& msg) {
  CoordinatorState& s = self->state;
  const Status status = msg.status;
  if (!status.ok() && !s.writing_mirror) return end_run(self, status);
  if (!status.ok()) log::warn("no mirror of step {}: {}", msg.step, status.message());
  if (status.ok() && s.host->observer != nullptr) {
    transport::WriteStats stats;
    stats.bytes_written = msg.bytes_written;
    stats.bytes_reused = msg.bytes_reused;
    stats.seconds = msg.seconds;
    s.host->observer->on_checkpoint(msg.step, msg.path, stats);
  }
  s.writing.reset();
  if (s.snapshot_waits) take_snapshot(self, s.mirror_waits);
  ask_for_reports(self);
}

void on_snapshot_written(Self self, const SnapshotWritten& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "snapshot_written", msg.step);
  const bool mirror = s.writing && s.writing_mirror && s.writing->step == msg.step;
  if (!msg.status.ok() && !mirror) return end_run(self, msg.status);
  if (msg.rank < 0 || msg.rank >= s.host->num_ranks()) {
    return end_run(self, internal_error("a snapshot of a rank that does not exist"));
  }
  if (!s.writing || s.writing->step != msg.step) return;  // sent again
  std::optional<std::string>& part = s.parts[static_cast<size_t>(msg.rank)];
  if (part) return;
  part = msg.part;
  if (!msg.status.ok()) s.writing->status = msg.status;
  s.writing->bytes_written += msg.bytes_written;
  s.writing->bytes_reused += msg.bytes_reused;
  s.writing->seconds = std::max(s.writing->seconds, msg.seconds);
  const bool whole =
      std::all_of(s.parts.begin(), s.parts.end(), [](const auto& p) { return p.has_value(); });
  if (!whole) return;
  if (s.writing->status.ok()) return commit_checkpoint(self);
  on_written(self, *s.writing);
}

void on_checkpoint_committed(Self self, const CheckpointCommitted& msg) {
  const auto span = self->state.probe.handle(self, "checkpoint_committed", msg.step);
  on_written(self, msg);
}

void on_validation_done(Self self, const ValidationDone& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "validation_done", msg.step);
  if (s.host->observer != nullptr) s.host->observer->on_validation(msg.step, msg.loss);
  advance(self, span);
}

/// Whatever goes wrong here or in a worker ends the run with its Status.
void watch(Self self) {
  self->set_exception_handler([self](std::exception_ptr& e) -> caf::error {
    self->state.finish(at_actor(status_of(e), -1, self->state.name));
    return caf::exit_reason::user_shutdown;
  });
  self->set_default_handler(
      [self](caf::scheduled_actor*, caf::message_view& view) -> caf::result<caf::message> {
        end_run(self, internal_error("unexpected message " + view.content().stringify()));
        return caf::sec::unexpected_message;
      });
  self->set_error_handler([self](caf::error& e) { end_run(self, from_caf(e)); });
  self->set_exit_handler([](caf::exit_msg&) {});  // of workers: their down messages say more
  self->set_down_handler([self](caf::down_msg& msg) {
    Status status = from_caf(msg.reason);
    if (status.ok()) status = internal_error("a worker ended before the run did");
    end_run(self, status);
  });
}

void start(Self self, const std::shared_ptr<CoordinatorHost>& host) {
  CoordinatorState& s = self->state;
  s.host = host;
  s.steps = StepCore(host->policy);
  const size_t num_ranks = host->placements.size();
  s.commits =
      CommitCore(std::vector<int64_t>(num_ranks, 1), host->generation, host->policy.first_step - 1);
  s.done.resize(num_ranks);
  s.probe = Probe(host->shared, s.name);
  host->shared->tracer.enable(host->trace_steps > 0);
  for (const SpawnWorker& spawn : host->workers) {
    s.workers.push_back(spawn(self, CoordinatorActor(self)));
  }
}

CoordinatorActor::behavior_type coordinator_actor(Self self,
                                                  const std::shared_ptr<CoordinatorHost>& host) {
  watch(self);
  start(self, host);
  return {
      [self](const RankReady& msg) {
        const auto span = self->state.probe.handle(self, "rank_ready", 0);
        CoordinatorState& st = self->state;
        if (msg.rank < 0 || msg.rank >= st.host->num_ranks()) {
          return end_run(self, internal_error("a rank that does not exist is ready"));
        }
        if (!st.ready.insert(msg.rank).second) return;  // sent again
        if (st.ready.size() != st.done.size()) return;
        if (st.host->on_ready) st.host->on_ready();
        advance(self, span);
      },
      [self](const Vote& msg) { on_vote(self, msg); },
      [self](const JournalWritten& msg) { on_journal_written(self, msg); },
      [self](const StepDone& msg) { on_step_done(self, msg); },
      [self](const ValidationDone& msg) { on_validation_done(self, msg); },
      [self](const SnapshotEnqueued& msg) {
        const auto span = self->state.probe.handle(self, "snapshot_enqueued", msg.step);
        if (--self->state.num_waited == 0) advance(self, span);
      },
      [self](const SnapshotWritten& msg) { on_snapshot_written(self, msg); },
      [self](const CheckpointCommitted& msg) { on_checkpoint_committed(self, msg); },
      [self](const RankFinished& msg) {
        if (msg.rank < 0 || msg.rank >= self->state.host->num_ranks()) {
          return end_run(self, internal_error("a rank that does not exist has finished"));
        }
        self->state.outcome.pools[static_cast<size_t>(msg.rank)] = msg.pool;
        if (--self->state.num_waited == 0) end_run(self, {});
      },
      [self](const FaultReport& msg) { end_run(self, msg.status); },
  };
}

}  // namespace

CoordinatorActor spawn_coordinator(caf::actor_system& system,
                                   const std::shared_ptr<CoordinatorHost>& host) {
  return system.spawn(coordinator_actor, host);
}

}  // namespace sgactor::actors
