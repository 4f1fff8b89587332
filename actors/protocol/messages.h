#pragma once
#include "actors/core/commit_core.h"
#include "actors/core/lane_core.h"
#include "actors/core/pool_core.h"
#include "actors/core/step_core.h"
#include "actors/protocol/handle.h"
#include "graph/base/status.h"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/meta/type_name.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// Every message between the actors of one process. Each says who sends it to whom, and when.
/// Messages are told apart by their logical key (kind, rank, step, micro-batch, edge), never by a
/// sequence number; what comes again is recognised and dropped. Local messages may carry pointers:
/// they are never given to a remote actor. Those that cross processes get wire forms of their own.
///
/// No message reports an error of the receiver back to its sender: an actor that fails quits with
/// its Status, its worker hears that, tells the coordinator (FaultReport), and the coordinator
/// decides. Times are nanoseconds of the steady clock, 0 where the device keeps none.

namespace sgactor::actors {

/// Which of a rank's programs: training, or validation (forward only, sharing the parameters).
using ProgramId = int32_t;
inline constexpr ProgramId kTraining = 0;
inline constexpr ProgramId kValidation = 1;

struct Routes;  // protocol/interfaces.h

// --- start and end ---

/// worker -> its actors: who is who in this rank's program. First message each of them gets.
struct Wire {
  std::shared_ptr<const Routes> routes;
};
/// worker -> coordinator: all actors of `rank` exist and know each other, and others are reached in
/// `generation`; steps may begin or go on.
struct RankReady {
  int32_t rank = 0;
  int64_t incarnation = 1;
  int64_t generation = 1;
};
/// coordinator -> worker: the run is over, say what it took (RankFinished for each rank), and wait
/// to be ended.
struct Finish {};
struct RankFinished {
  int32_t rank = 0;
  PoolStats pool;  ///< bytes of the rank's arena
};
/// worker -> pool: answer with PoolReport.
struct AskPoolReport {};
/// pool -> worker.
struct PoolReport {
  int32_t rank = 0;
  ProgramId program = kTraining;
  PoolStats stats;
};
/// worker -> coordinator: an actor of `rank` (or the worker's own work for it) has failed with
/// `status`, which is never ok. The rank's state is not to be trusted from here on.
struct FaultReport {
  int32_t rank = 0;
  Status status;
  /// Nothing is lost here: an operation with others waits for a recovery, because of `status`.
  bool suspended = false;
};

// --- recovery in place ---

/// whoever looks after processes -> coordinator: `ranks` have lost their worker. Nothing commits
/// before their next incarnations vote; CoordinatorHost::on_fenced is told once that is on disk.
/// A later one replaces one that is under way.
struct Fence {
  int64_t generation = 1;
  std::vector<int32_t> ranks;
};
/// a worker's process -> worker: others are reached in `generation`; answered by RankReady.
struct Rejoined {
  int64_t generation = 1;
};
/// coordinator -> worker: all are ready in `generation`. Implies COMMIT(committed). Operations of
/// the open step go on; what was said since is said again, since it may not have been heard.
struct Resume {
  int64_t generation = 1;
  int64_t committed = 0;
};

// --- step and commit ---

/// coordinator -> worker: execute step `step` up to the vote.
struct BeginStep {
  int64_t step = 0;
  int64_t generation = 1;
};
/// worker -> coordinator: everything before the commit is complete on `rank`. A failure is a
/// FaultReport instead.
struct Vote {
  int32_t rank = 0;
  int64_t incarnation = 1;
  int64_t generation = 1;
  int64_t step = 0;
  // Of a step that is verified (gradient_check.h).
  uint64_t posted = 0;   ///< hash of what the rank has posted; 0: the step is not verified
  int32_t checked = -1;  ///< the rank whose posts it has executed again
  uint64_t checked_hash = 0;
  // Where replicas stand for lost ranks (CoordinatorHost::replicas): of the rank's own samples,
  // which nobody else has.
  float loss = 0;
  bool has_loss = false;
};
/// coordinator -> worker: execute what `of` has posted in the open step once more, on `rank`;
/// answered by another Vote, with its hash.
struct Recheck {
  int32_t rank = 0;
  int32_t of = 0;
  int64_t step = 0;
  int64_t generation = 1;
};
/// a service of the worker -> worker: `rank` has executed posts of `of` again.
struct GradientChecked {
  int32_t rank = 0;
  int32_t of = 0;
  int64_t step = 0;
  Status status;
  uint64_t posted = 0;     ///< by `rank` itself
  uint64_t hash = 0;       ///< of what it has executed again
  bool again = false;      ///< a Recheck: the rank has voted before
  int64_t generation = 1;  ///< in which it began
};
/// journal's service -> coordinator: the commit record of `step` is on disk, or why not.
struct JournalWritten {
  int64_t step = 0;
  Status status;
  int64_t fence = 0;  ///< not 0: the record is that of the Fence of this generation
};
/// the device's service -> worker: what the update of `step` needs lies at the mirror (or why not,
/// which costs no more than a longer way back), or the rank's loss is read: the rank may vote.
struct InputsKept {
  int32_t rank = 0;
  int64_t step = 0;
  Status status;
};
/// coordinator -> worker: COMMIT(step). Updates of the step may run.
struct Commit {
  int64_t step = 0;
  int64_t generation = 1;
};
/// worker -> coordinator: the step's update is complete on `rank`.
struct StepDone {
  int32_t rank = 0;
  int64_t incarnation = 1;
  int64_t step = 0;
  RankNumbers numbers;
  int64_t kernel_ns = 0;  ///< the compute lane inside kernels
  int64_t tokens = 0;     ///< valid ones of the global batch
  uint64_t sample_hash = 0;
  /// Launches that the rank's process has executed again since this generation began.
  int64_t reexecuted = 0;
};
/// the device's service -> worker: numbers read back from the device after `step` of `program`.
struct NumbersRead {
  int32_t rank = 0;
  ProgramId program = kTraining;
  int64_t step = 0;
  Status status;
  RankNumbers numbers;
};
/// coordinator -> worker: forward passes over `num_batches` held-out micro-batches, by the rank
/// that has a program for it (CoordinatorHost::validation_rank).
struct BeginValidation {
  int64_t step = 0;  ///< the training step just done
  int64_t num_batches = 0;
};
/// worker -> coordinator: mean loss in nats a token.
struct ValidationDone {
  int32_t rank = 0;
  int64_t step = 0;
  double loss = 0;
};

// --- lanes, launches and memory ---

/// A lane's turn. Worker -> owner of the first item; then from each owner to the next; the worker
/// gets it back at commit and end items. Whoever holds it is alone in putting work on the lane's
/// stream.
struct LaneToken {
  int32_t rank = 0;
  ProgramId program = kTraining;
  int32_t lane = 0;
  LanePoint at;
};
/// producer (subgraph or feeder) -> consumer (subgraph): `input` of the execution
/// (handle.step, micro_batch) lies there. Sent when the producer is on its stream, not when it is
/// complete; if one of the two runs on a channel, when it is complete. Without a buffer it opens a
/// gate (Gate): worker or subgraph -> subgraph of another lane.
struct HandleReady {
  int32_t input = 0;
  int32_t micro_batch = 0;  ///< of the consumer's execution
  TensorHandle handle;
};
/// subgraph, feeder -> pool: the item wants its slots; answered by SlotsGranted, in planned order.
/// `asker` is a launch, or kNoLaunch for the feeder.
struct LeaseRequest {
  int32_t lane = 0;
  LanePoint at;
  graph::LaunchId asker = graph::kNoLaunch;
  int32_t micro_batch = 0;
};
/// pool -> asker: leases in the order of LaneItem::leases.
struct SlotsGranted {
  LanePoint at;
  int32_t micro_batch = 0;
  std::vector<std::shared_ptr<Lease>> leases;
};
/// last handle of a lease -> pool.
struct ReleaseLease {
  LeaseId lease;
  LanePoint last_use;
};
/// subgraph -> pool, in plans of several lanes: work of the lane up to `at` is complete.
struct LaneProgress {
  int32_t lane = 0;
  LanePoint at;
};
/// device (through a completion sink; high priority) -> whoever launched: work is complete, or
/// failed with `status`, after which the stream does nothing any more.
struct WorkComplete {
  uint64_t token = 0;  ///< the launcher's own name for the work
  Status status;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// --- data ---

/// the data service -> feeder: a micro-batch lies in staging, or why not.
struct BatchPrepared {
  int64_t step = 0;
  int32_t micro_batch = 0;
  Status status;
};
/// feeder -> worker: the numbers of `step` lie in staging and its first micro-batch too.
struct StepPrepared {
  int32_t rank = 0;
  ProgramId program = kTraining;
  int64_t step = 0;
  int64_t valid_tokens = 0;
  uint64_t sample_hash = 0;
};

// --- checkpoints ---

/// coordinator -> worker, worker -> writers of its ranks: take a snapshot of the state after
/// `step`. The worker lends a writer the rank's lanes until SnapshotEnqueued. Never before the
/// checkpoint before it is whole.
struct TakeSnapshot {
  int64_t step = 0;
  /// Directory that it goes to instead of the run's checkpoints: a copy in memory, which the run
  /// can do without. Empty: the run's checkpoints.
  std::string mirror;
  int64_t generation = 1;  ///< in which it was asked for
};
/// writer -> worker, worker -> coordinator: the copies are on the stream, later work is ordered
/// behind them.
struct SnapshotEnqueued {
  int32_t rank = 0;
  int64_t step = 0;
  /// Generation of the TakeSnapshot that this answers: of a step there may be several, also of
  /// other directories.
  int64_t taken = 1;
};
/// the writer's service -> writer, writer -> coordinator: what `rank` adds to the checkpoint is on
/// disk, or why not. With the parts of all ranks the coordinator makes the checkpoint whole; a part
/// of another snapshot than the one that it has asked for is none of it.
struct SnapshotWritten {
  int32_t rank = 0;
  int64_t step = 0;
  int64_t taken = 1;  ///< generation of the TakeSnapshot that this answers
  Status status;
  std::string part;  ///< which pieces of which tensors lie in which chunks: transport's bytes
  int64_t bytes_written = 0;
  int64_t bytes_reused = 0;
  double seconds = 0;
};
/// the coordinator's storage service -> coordinator: the checkpoint of `step` is whole on disk, or
/// why not. Sums over the ranks' parts.
struct CheckpointCommitted {
  int64_t step = 0;
  Status status;
  std::string path;
  int64_t bytes_written = 0;
  int64_t bytes_reused = 0;
  double seconds = 0;
};

// Fields that name a message in event logs; pointers stay out, so that logs are the same every run.
template <class I>
typename I::result_type inspect(I& f, LanePoint& x) {
  return f(caf::meta::type_name("at"), x.step, x.position);
}
template <class I>
typename I::result_type inspect(I& f, TensorHandle& x) {
  return f(caf::meta::type_name("tensor"), x.buffer, x.slot, x.step, x.micro_batch, x.rank,
           x.incarnation, x.generation);
}
template <class I>
typename I::result_type inspect(I& f, RankReady& x) {
  return f(caf::meta::type_name("rank_ready"), x.rank, x.incarnation, x.generation);
}
template <class I>
typename I::result_type inspect(I& f, BeginStep& x) {
  return f(caf::meta::type_name("begin_step"), x.step, x.generation);
}
template <class I>
typename I::result_type inspect(I& f, Vote& x) {
  return f(caf::meta::type_name("vote"), x.rank, x.incarnation, x.generation, x.step);
}
template <class I>
typename I::result_type inspect(I& f, Commit& x) {
  return f(caf::meta::type_name("commit"), x.step, x.generation);
}
template <class I>
typename I::result_type inspect(I& f, StepDone& x) {
  return f(caf::meta::type_name("step_done"), x.rank, x.incarnation, x.step, x.numbers.loss,
           x.sample_hash);
}
template <class I>
typename I::result_type inspect(I& f, LaneToken& x) {
  return f(caf::meta::type_name("lane_token"), x.rank, x.program, x.lane, x.at);
}
template <class I>
typename I::result_type inspect(I& f, HandleReady& x) {
  return f(caf::meta::type_name("handle_ready"), x.input, x.micro_batch, x.handle);
}
template <class I>
typename I::result_type inspect(I& f, LeaseRequest& x) {
  return f(caf::meta::type_name("lease_request"), x.lane, x.at, x.asker, x.micro_batch);
}

}  // namespace sgactor::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Wire)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::RankReady)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Finish)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::RankFinished)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::AskPoolReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::PoolReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::FaultReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Fence)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Rejoined)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Resume)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::BeginStep)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Vote)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Recheck)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::GradientChecked)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::JournalWritten)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Commit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::StepDone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::NumbersRead)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::InputsKept)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::BeginValidation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::ValidationDone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::LaneToken)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::HandleReady)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::LeaseRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::SlotsGranted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::ReleaseLease)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::LaneProgress)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::WorkComplete)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::BatchPrepared)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::StepPrepared)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::TakeSnapshot)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::SnapshotEnqueued)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::SnapshotWritten)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::CheckpointCommitted)
