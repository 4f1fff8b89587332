#include "actors/runtime/coordinator.h"

#include "actors/core/commit_core.h"
#include "actors/runtime/gradient_check.h"
#include "actors/runtime/shell.h"
#include "actors/runtime/update_inputs.h"
#include "graph/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
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
    outcome.committed = commits.committed();
    if (host->replicas && waits == Waits::kDone && steps.step() == commits.committed()) owe_step();
    host->on_finished(outcome);
  }
  void owe_step();

  std::string name = "coordinator";
  int32_t rank = -1;
  std::shared_ptr<CoordinatorHost> host;
  std::vector<WorkerActor> workers;
  StepCore steps;
  CommitCore commits;
  RunOutcome outcome;
  bool finished = false;
  std::set<int32_t> ready;
  /// What the action under way waits for, and from which ranks.
  enum class Waits : uint8_t { kNothing = 0, kDone, kEnqueued, kValidated, kFinished };
  Waits waits = Waits::kNothing;
  std::set<int32_t> missing;
  bool started = false;  // all have been ready once
  // From a Fence until all are ready again: nothing is begun or announced.
  std::optional<Fence> fence;
  bool journal_busy = false;
  bool advance_due = false;  // held back by the fence
  bool validate_again = false;
  // Of the open step, if it is verified: by rank, and by the rank whose posts were executed again,
  // who did it and what came of it.
  struct Execution {
    int32_t by = -1;
    uint64_t hash = 0;
  };
  std::map<int32_t, uint64_t> posted;
  std::map<int32_t, Execution> checked;
  std::optional<Recheck> recheck;  // under way
  std::set<int32_t> writers_busy;  // ranks whose snapshot is not written
  // The checkpoint on its way to disk, one at a time: parts of the ranks, by rank.
  std::optional<CheckpointCommitted> writing;
  int64_t taken = 1;  // generation in which it was asked for
  bool writing_mirror = false;
  std::vector<std::optional<std::string>> parts;
  bool mirror_waits = false;    // the one that waits is a mirror
  bool snapshot_waits = false;  // for the one before it to be whole
  bool finishing = false;
  int64_t begin_ns = 0;
  std::vector<StepDone> done;  // of the open step, by rank
  // With CoordinatorHost::replicas. What ranks have said of the step that they voted for last, and
  // lost ranks that nobody will hear of the step committed last.
  std::vector<Vote> voted;
  std::set<int32_t> untold;
  Probe probe;

  void wait_for(Waits what) {
    waits = what;
    missing.clear();
    for (int32_t r = 0; r < host->num_ranks(); ++r) missing.insert(r);
  }
  /// True if that was the last answer; one that nobody waits for changes nothing.
  bool answered(Waits what, int32_t rank) {
    if (waits != what || missing.erase(rank) == 0 || !missing.empty()) return false;
    waits = Waits::kNothing;
    return true;
  }
  [[nodiscard]] bool has_rank(int32_t rank) const { return rank >= 0 && rank < host->num_ranks(); }
};
using Waits = CoordinatorState::Waits;
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
  s.wait_for(Waits::kFinished);
  tell_workers(self, Finish{});
}

/// Storage that is slower than the interval between checkpoints holds the run back here: the
/// alternative is to lose a checkpoint that was asked for.
void take_snapshot(Self self, bool mirror = false) {
  CoordinatorState& s = self->state;
  s.snapshot_waits = s.writing.has_value() || !s.writers_busy.empty() || s.fence.has_value();
  s.mirror_waits = s.snapshot_waits && mirror;
  if (s.snapshot_waits) return;
  s.writing_mirror = mirror;
  s.writing = CheckpointCommitted{s.steps.last_done(), {}, {}, 0, 0, 0};
  s.parts.assign(s.host->placements.size(), std::nullopt);
  s.wait_for(Waits::kEnqueued);
  s.host->shared->computes = true;
  s.writers_busy = s.missing;
  s.taken = s.commits.generation();
  tell_workers(self, TakeSnapshot{s.steps.last_done(), mirror ? s.host->mirror.root : "", s.taken});
}

void begin_step(Self self, const Probe::Span& span) {
  CoordinatorState& s = self->state;
  const int64_t step = s.steps.step();
  s.begin_ns = now_ns(self);
  s.host->shared->computes = true;
  s.wait_for(Waits::kDone);
  for (int32_t r = 0; r < s.host->num_ranks(); ++r) span.sent(arrow_id(Arrow::kBegin, r, 0, step));
  tell_workers(self, BeginStep{step, s.commits.generation()});
}

/// Does what comes next.
void advance(Self self, const Probe::Span& span) {
  CoordinatorState& s = self->state;
  s.host->shared->computes = false;
  s.advance_due = s.fence.has_value();
  if (s.advance_due) return;
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
      // Where replicas are, whoever paused the run has their state copied.
      if (s.host->mirror.root.empty()) return advance(self, span);
      return take_snapshot(self, true);
    case StepCore::Action::kValidate:
      s.waits = Waits::kValidated;
      s.host->shared->computes = true;
      return tell_workers(self, BeginValidation{s.steps.last_done(), s.host->validation_batches});
    case StepCore::Action::kFinish:
      s.finishing = true;
      return ask_for_reports(self);
  }
}

/// Of all ranks as they have voted for `step`; none if they have not.
std::vector<int64_t> loss_bits_of(const CoordinatorState& s, int64_t step) {
  std::vector<int64_t> out;
  for (const Vote& vote : s.voted) {
    if (vote.step != step) return {};
    out.push_back(vote.has_loss ? int64_t{std::bit_cast<uint32_t>(vote.loss)} : -1);
  }
  return out;
}

/// `fence`: its generation if the record is that of a fence, else 0.
void write_journal(Self self, CommitRecord record, int64_t fence) {
  CoordinatorState& s = self->state;
  s.journal_busy = true;
  const int64_t step = record.step;
  if (fence == 0) s.host->shared->computes = false;  // all wait for a disk
  if (s.host->replicas) record.loss_bits = loss_bits_of(s, step);
  s.host->services.journal->submit(
      [journal = s.host->journal, record = std::move(record)] { return journal->append(record); },
      [coordinator = CoordinatorActor(self), step, fence](const Status& status) {
        caf::anon_send(coordinator, JournalWritten{step, status, fence});
      });
}

/// The third execution of what two have made differently.
void judge_posts(Self self, const Vote& msg) {
  CoordinatorState& s = self->state;
  const Recheck asked = *std::exchange(s.recheck, std::nullopt);
  VerifiedStep v;
  v.step = asked.step;
  v.rank = asked.of;
  v.own_hash = s.posted[asked.of];
  v.checker = s.checked[asked.of].by;
  v.checker_hash = s.checked[asked.of].hash;
  v.umpire = asked.rank;
  v.umpire_hash = msg.checked_hash;
  const bool of_rank = find_liar(v.own_hash, v.checker_hash, v.umpire_hash) == Liar::kRank;
  v.liar = of_rank ? v.rank : v.checker;
  if (s.host->observer != nullptr) s.host->observer->on_verified(v);
  Origin origin;
  origin.rank = v.liar;
  origin.step = v.step;
  const Status why(
      Code::kDeviceFault, Scope::kDevice,
      fmt::format("wrong bits in step {}: of what rank {} has posted, rank {} has {:016x}, rank {} "
                  "{:016x}, rank {} {:016x}; rank {} was wrong",
                  v.step, v.rank, v.rank, v.own_hash, v.checker, v.checker_hash, v.umpire,
                  v.umpire_hash, v.liar),
      std::move(origin));
  if (!s.host->on_wrong_bits) return end_run(self, why);
  s.host->on_wrong_bits(v.liar, why);
}

/// All have voted. False if executions differ: a third one decides, and nothing is committed.
bool posts_agree(Self self) {
  CoordinatorState& s = self->state;
  const int64_t step = s.commits.committed() + 1;
  for (const auto& [of, execution] : s.checked) {
    if (!s.posted.contains(of) || s.posted[of] == execution.hash) continue;
    s.recheck = Recheck{s.host->umpires[static_cast<size_t>(of)], of, step, s.commits.generation()};
    tell_workers(self, *s.recheck);
    return false;
  }
  if (!s.checked.empty() && s.host->observer != nullptr) {
    VerifiedStep v;
    v.step = step;
    s.host->observer->on_verified(v);
  }
  s.posted.clear();
  s.checked.clear();
  return true;
}

void on_vote(Self self, const Vote& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "vote", msg.step);
  span.received(arrow_id(Arrow::kVote, msg.rank, 0, msg.step));
  const auto vote = s.commits.on_vote(msg.rank, msg.incarnation, msg.generation, msg.step);
  if (!vote.ok()) return end_run(self, vote.status());
  const bool counts = *vote == CommitCore::Vote::kAll || *vote == CommitCore::Vote::kCounted;
  if (counts && s.host->replicas) s.voted[static_cast<size_t>(msg.rank)] = msg;
  if (counts && msg.checked >= 0) {
    s.posted[msg.rank] = msg.posted;
    s.checked[msg.checked] = {msg.rank, msg.checked_hash};
  }
  const bool third = s.recheck && *vote == CommitCore::Vote::kRepeated &&
                     msg.rank == s.recheck->rank && msg.checked == s.recheck->of &&
                     msg.step == s.recheck->step;
  if (third) return judge_posts(self, msg);
  if (*vote != CommitCore::Vote::kAll || !posts_agree(self)) return;
  write_journal(self, s.commits.record(), 0);
}

/// Gives up the snapshot under way: a rank that is gone owes its part.
void give_up_snapshot(CoordinatorState& s) {
  const bool mirror = s.writing_mirror;
  s.writing.reset();
  if (s.waits == Waits::kEnqueued) {
    // The state is that of the last step still: taken again when all are ready.
    s.waits = Waits::kNothing;
    s.snapshot_waits = true;
    s.mirror_waits = mirror;
  } else if (!mirror) {
    s.steps.redo_checkpoint();
  }
}

/// No record is on its way to disk: what is committed now stays that, and votes of the lives that
/// are over are forgotten.
void fence_now(Self self) {
  CoordinatorState& s = self->state;
  const Fence& fence = *s.fence;
  s.ready.clear();
  s.commits.fence(fence.generation);
  if (!fence.ranks.empty()) s.recheck.reset();  // their votes bring the question again
  for (const int32_t rank : fence.ranks) {
    (void)s.commits.adopt(rank, fence.generation, fence.generation);
    const bool owes = s.waits == Waits::kDone && s.steps.step() == s.commits.committed();
    if (s.host->replicas && owes && s.missing.contains(rank)) s.untold.insert(rank);
    s.writers_busy.erase(rank);
    if (s.writing && !s.parts[static_cast<size_t>(rank)]) give_up_snapshot(s);
    if (s.waits == Waits::kValidated && rank == s.host->validation_rank) s.validate_again = true;
    // Its part of the snapshot is written, so its lanes were free.
    if (s.answered(Waits::kEnqueued, rank)) s.advance_due = true;
  }
  write_journal(self, s.commits.standing(), fence.generation);
}

void on_fence(Self self, const Fence& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "fence", s.commits.committed());
  for (const int32_t rank : msg.ranks) {
    if (!s.has_rank(rank)) return end_run(self, internal_error("a fence of no rank"));
  }
  if (s.finishing || !s.started || s.finished) {
    if (s.host->on_fenced) s.host->on_fenced(msg.generation, -1);
    return;
  }
  s.fence = msg;
  if (!s.journal_busy) fence_now(self);
}

bool answer_for_lost(Self self);
void finish_step(Self self, const Probe::Span& span);

/// All are ready in the fence's generation.
void resume(Self self, const Probe::Span& span) {
  CoordinatorState& s = self->state;
  s.fence.reset();
  const Resume go_on{s.commits.generation(), s.commits.committed()};
  tell_workers(self, go_on);
  if (s.recheck) {
    s.recheck->generation = go_on.generation;
    tell_workers(self, *s.recheck);
  }
  if (s.host->on_ready) s.host->on_ready(s.commits.generation());
  if (answer_for_lost(self)) {
    finish_step(self, span);
  } else if (s.waits == Waits::kDone && s.steps.step() > go_on.committed) {
    tell_workers(self, BeginStep{s.steps.step(), go_on.generation});
  } else if (s.waits == Waits::kValidated && std::exchange(s.validate_again, false)) {
    tell_workers(self, BeginValidation{s.steps.last_done(), s.host->validation_batches});
  } else if (s.waits == Waits::kNothing && s.snapshot_waits) {
    take_snapshot(self, s.mirror_waits);
  } else if (s.waits == Waits::kNothing && s.advance_due) {
    advance(self, span);
  }
}

void on_ready(Self self, const RankReady& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "rank_ready", 0);
  if (!s.has_rank(msg.rank)) {
    return end_run(self, internal_error("a rank that does not exist is ready"));
  }
  if (msg.generation != s.commits.generation() ||
      msg.incarnation != s.commits.incarnation(msg.rank)) {
    return;  // of a life or a generation that is over
  }
  if (!s.ready.insert(msg.rank).second) return;  // sent again
  if (s.ready.size() != s.done.size()) return;
  if (std::exchange(s.started, true)) return resume(self, span);
  if (s.host->on_ready) s.host->on_ready(s.commits.generation());
  advance(self, span);
}

void on_journal_written(Self self, const JournalWritten& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "journal_written", msg.step);
  s.journal_busy = false;
  if (!msg.status.ok()) return end_run(self, msg.status);
  if (msg.fence == 0) s.host->shared->computes = true;
  if (s.host->on_journalled) s.host->on_journalled(msg.step, msg.fence);
  if (msg.fence == 0) {
    if (Status st = s.commits.on_durable(msg.step); !st.ok()) return end_run(self, st);
  }
  if (s.fence) {
    // The commit is announced when all are ready again.
    if (s.fence->generation != msg.fence) return fence_now(self);
    return s.host->on_fenced(msg.fence, s.commits.committed());
  }
  for (int32_t r = 0; r < s.host->num_ranks(); ++r) {
    span.sent(arrow_id(Arrow::kCommit, r, 0, msg.step));
  }
  tell_workers(self, Commit{msg.step, s.commits.generation()});
}

/// Each data-parallel rank has the loss of its own samples, the same on all of its tensor-parallel
/// ranks and on the last stage only.
float sum_losses(const std::vector<graph::RankPlacement>& placements,
                 const std::vector<RankNumbers>& ranks) {
  std::vector<std::pair<int32_t, float>> by_dp;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const graph::RankPlacement& place = placements[r];
    if (ranks[r].has_loss && place.tp == 0) by_dp.emplace_back(place.dp, ranks[r].loss);
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
  std::vector<RankNumbers> numbers;
  for (const StepDone& d : s.done) numbers.push_back(d.numbers);
  report.loss = sum_losses(s.host->placements, numbers);
  report.grad_norm = first.numbers.grad_norm;
  report.lr = first.numbers.lr;
  report.tokens = first.tokens;
  report.step_ms = static_cast<double>(now_ns(self) - s.begin_ns) / 1e6;
  report.kernel_ms = static_cast<double>(kernel_ns) / 1e6;
  report.generation = s.commits.generation();
  report.sample_hash = first.sample_hash;
  for (const StepDone& d : s.done) {
    // A rank whose actors have failed begins again in the process that it had.
    if (s.commits.incarnation(d.rank) <= s.host->generation) report.reexecuted += d.reexecuted;
  }
  return report;
}

Status lost_loss(int32_t rank, int64_t step) {
  return make_status(
      Code::kDisconnected,
      fmt::format("step {} is committed, and its loss went with rank {}", step, rank),
      Scope::kRank);
}

/// Fills in for ranks that are lost and have not told of the committed step: of its numbers only
/// the loss is a rank's own, and that came with its vote. True if nobody else is waited for.
bool answer_for_lost(Self self) {
  CoordinatorState& s = self->state;
  if (s.untold.empty() || s.waits != Waits::kDone) return false;
  const auto told = std::find_if(s.done.begin(), s.done.end(),
                                 [&s](const StepDone& d) { return d.step == s.steps.step(); });
  if (told == s.done.end()) return false;
  const StepDone other = *told;
  bool last = false;
  for (const int32_t rank : std::exchange(s.untold, {})) {
    const Vote& vote = s.voted[static_cast<size_t>(rank)];
    if (vote.step != other.step) {
      end_run(self, lost_loss(rank, other.step));
      return false;
    }
    StepDone& done = s.done[static_cast<size_t>(rank)];
    done = other;
    done.rank = rank;
    done.incarnation = s.commits.incarnation(rank);
    done.numbers.loss = vote.loss;
    done.numbers.has_loss = vote.has_loss;
    done.reexecuted = 0;
    last = s.answered(Waits::kDone, rank) || last;
  }
  return last;
}

void on_step_done(Self self, const StepDone& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "step_done", msg.step);
  span.received(arrow_id(Arrow::kDone, msg.rank, 0, msg.step));
  if (!s.has_rank(msg.rank)) {
    return end_run(self, internal_error("a step of a rank that does not exist"));
  }
  StepDone& done = s.done[static_cast<size_t>(msg.rank)];
  if (done.step >= msg.step || msg.step != s.steps.step()) return;  // sent again
  done = msg;
  const bool last = s.answered(Waits::kDone, msg.rank);
  if (answer_for_lost(self) || last) finish_step(self, span);
}

/// All have told of the step.
void finish_step(Self self, const Probe::Span& span) {
  CoordinatorState& s = self->state;
  const int64_t step = s.steps.step();
  if (Status st = s.steps.on_step_done(step); !st.ok()) return end_run(self, st);
  const StepReport report = make_report(self);
  s.outcome.step_seconds += report.step_ms / 1e3;
  s.outcome.kernel_seconds += report.kernel_ms / 1e3;
  if (step + 1 == s.host->policy.first_step + s.host->trace_steps) {
    s.host->shared->tracer.enable(false);
  }
  if (s.host->observer != nullptr) s.host->observer->on_step(report);
  advance(self, span);
}

/// A step is committed, the run ends, and not all have told of the step.
void CoordinatorState::owe_step() {
  const int64_t step = commits.committed();
  outcome.owed =
      owed_report(host->placements, {step, commits.generation(), {}, loss_bits_of(*this, step)});
  if (!outcome.owed) return;
  for (const StepDone& d : done) {
    if (d.step != step) continue;
    complete_report(*outcome.owed, d);
    outcome.owed_whole = true;
  }
}

/// Update inputs that not even the oldest copy needs.
void prune_kept_inputs(const std::string& mirror_root) {
  const auto copies = transport::list_checkpoints(mirror_root);
  // Of the newest nobody has been told yet: the way back still begins at the one before it.
  if (!copies.ok() || copies->size() < 2) return;
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

/// A rank's staging is free: one that waits for the last of them may be taken.
void on_writer_free(Self self, int32_t rank) {
  CoordinatorState& s = self->state;
  s.writers_busy.erase(rank);
  if (s.writers_busy.empty() && s.snapshot_waits) take_snapshot(self, s.mirror_waits);
}

void on_snapshot_written(Self self, const SnapshotWritten& msg) {
  CoordinatorState& s = self->state;
  const auto span = s.probe.handle(self, "snapshot_written", msg.step);
  if (!s.has_rank(msg.rank)) {
    return end_run(self, internal_error("a snapshot of a rank that does not exist"));
  }
  // Of one that another coordinator has asked for, maybe of the same step for another directory:
  // the writer is not at ours yet.
  if (msg.taken != s.taken) return;
  const bool asked = s.writing && s.writing->step == msg.step;
  // One that is no longer asked for was given up, and may have failed.
  if (!msg.status.ok() && asked && !s.writing_mirror) return end_run(self, msg.status);
  s.writers_busy.erase(msg.rank);
  if (!asked) return on_writer_free(self, msg.rank);
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
  if (s.waits != Waits::kValidated || msg.step != s.steps.last_done()) return;  // sent again
  s.waits = Waits::kNothing;
  s.validate_again = false;
  if (s.host->observer != nullptr) s.host->observer->on_validation(msg.step, msg.loss);
  advance(self, span);
}

/// The failure is one actor's, and what it leaves behind another life of the rank makes good.
bool is_actor_failure(const CoordinatorState& s, const FaultReport& msg) {
  const bool lost = msg.status.code() == Code::kDisconnected ||
                    msg.status.code() == Code::kTimeout || msg.status.code() == Code::kCancelled;
  return s.host->on_failed && s.started && !s.finishing && s.has_rank(msg.rank) && !lost &&
         msg.status.scope() <= Scope::kActor;
}

void on_fault(Self self, const FaultReport& msg) {
  CoordinatorState& s = self->state;
  // A life that is over says how its end is felt.
  const bool over = s.fence && std::find(s.fence->ranks.begin(), s.fence->ranks.end(), msg.rank) !=
                                   s.fence->ranks.end();
  if (over) return;
  if (msg.suspended && s.host->on_suspended) {
    if (!s.fence) s.host->on_suspended(s.commits.generation(), msg.status);
    return;
  }
  if (!is_actor_failure(s, msg)) return end_run(self, msg.status);
  s.host->on_failed(msg.rank, msg.status);
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
    CoordinatorState& s = self->state;
    Status status = from_caf(msg.reason);
    if (status.ok()) status = internal_error("a worker ended before the run did");
    std::erase_if(s.workers, [&](const WorkerActor& w) { return w == msg.source; });
    // A lost process is somebody else's to answer, by a fence or by the run's end.
    const bool process = status.scope() == Scope::kRank && status.code() != Code::kInternal;
    if (!process || !s.host->on_fenced) end_run(self, status);
  });
}

/// What the coordinator before has heard of the step that it owes, and who cannot tell of it again.
void recall_votes(CoordinatorState& s) {
  const CoordinatorHost& host = *s.host;
  if (!host.replicas || host.loss_bits.size() != s.voted.size()) return;
  for (size_t r = 0; r < s.voted.size(); ++r) {
    Vote& vote = s.voted[r];
    vote.step = host.taken_over->committed;
    vote.has_loss = host.loss_bits[r] >= 0;
    if (vote.has_loss) {
      vote.loss = std::bit_cast<float>(static_cast<uint32_t>(host.loss_bits[r]));
    }
    if (host.incarnations[r] == host.generation) s.untold.insert(static_cast<int32_t>(r));
  }
}

/// Who votes for what is known already; the workers are where a fence would have left them.
void take_over(Self self) {
  CoordinatorState& s = self->state;
  const CoordinatorHost& host = *s.host;
  const TakenOver& at = *host.taken_over;
  s.commits = CommitCore(host.incarnations, host.generation, at.committed);
  s.steps.take_over(at);
  s.started = true;
  s.begin_ns = now_ns(self);
  if (at.owes_done) {
    s.wait_for(Waits::kDone);
    recall_votes(s);
  } else {
    s.advance_due = true;
  }
}

void start(Self self, const std::shared_ptr<CoordinatorHost>& host) {
  CoordinatorState& s = self->state;
  s.host = host;
  s.steps = StepCore(host->policy);
  const size_t num_ranks = host->placements.size();
  s.commits = CommitCore(std::vector<int64_t>(num_ranks, host->generation), host->generation,
                         host->policy.first_step - 1);
  s.done.resize(num_ranks);
  s.voted.resize(num_ranks);
  for (Vote& vote : s.voted) vote.step = -1;
  if (host->taken_over) take_over(self);
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
      [self](const RankReady& msg) { on_ready(self, msg); },
      [self](const Vote& msg) { on_vote(self, msg); },
      [self](const JournalWritten& msg) { on_journal_written(self, msg); },
      [self](const StepDone& msg) { on_step_done(self, msg); },
      [self](const ValidationDone& msg) { on_validation_done(self, msg); },
      [self](const SnapshotEnqueued& msg) {
        const auto span = self->state.probe.handle(self, "snapshot_enqueued", msg.step);
        CoordinatorState& st = self->state;
        // Of one that was given up, which may be of the same step: its lanes were free, and those
        // of the one under way are not yet.
        if (!st.writing || st.writing->step != msg.step || st.taken != msg.taken) return;
        if (st.answered(Waits::kEnqueued, msg.rank)) advance(self, span);
      },
      [self](const SnapshotWritten& msg) { on_snapshot_written(self, msg); },
      [self](const CheckpointCommitted& msg) { on_checkpoint_committed(self, msg); },
      [self](const RankFinished& msg) {
        if (!self->state.has_rank(msg.rank)) {
          return end_run(self, internal_error("a rank that does not exist has finished"));
        }
        self->state.outcome.pools[static_cast<size_t>(msg.rank)] = msg.pool;
        if (self->state.answered(Waits::kFinished, msg.rank)) end_run(self, {});
      },
      [self](const FaultReport& msg) { on_fault(self, msg); },
      [self](const Fence& msg) { on_fence(self, msg); },
      [self](const Adopt& msg) {
        self->state.workers.push_back(msg.spawn(self, CoordinatorActor(self)));
      },
  };
}

}  // namespace

std::optional<StepReport> owed_report(const std::vector<graph::RankPlacement>& placements,
                                      const CommitRecord& record) {
  if (record.loss_bits.size() != placements.size() || placements.empty()) return std::nullopt;
  std::vector<RankNumbers> numbers(placements.size());
  for (size_t r = 0; r < numbers.size(); ++r) {
    numbers[r].has_loss = record.loss_bits[r] >= 0;
    if (!numbers[r].has_loss) continue;
    numbers[r].loss = std::bit_cast<float>(static_cast<uint32_t>(record.loss_bits[r]));
  }
  StepReport report;
  report.step = record.step;
  report.generation = record.generation;
  report.loss = sum_losses(placements, numbers);
  return report;
}

void complete_report(StepReport& report, const StepDone& done) {
  report.grad_norm = done.numbers.grad_norm;
  report.lr = done.numbers.lr;
  report.tokens = done.tokens;
  report.sample_hash = done.sample_hash;
}

CoordinatorActor spawn_coordinator(caf::actor_system& system,
                                   const std::shared_ptr<CoordinatorHost>& host) {
  return system.spawn(coordinator_actor, host);
}

}  // namespace sgactor::actors
