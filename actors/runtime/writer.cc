#include "actors/runtime/members.h"
#include "actors/runtime/shell.h"

#include <optional>
#include <string>
#include <utility>

namespace sgactor::actors {
namespace {

struct WriterState {
  std::string name = "checkpoint writer";
  int32_t rank = 0;
  std::shared_ptr<WriterHost> host;
  WorkerActor worker;
  CoordinatorActor coordinator;
  std::string mirror;  // where the one under way goes, if not to the run's checkpoints
  int64_t taken = 1;   // generation in which it was asked for
  bool busy = false;   // staging holds a snapshot that is not on disk yet
  // Asked for by a coordinator that has taken the run over and does not know of the one under way.
  std::optional<TakeSnapshot> next;
  Probe probe;
};
using Self = WriterActor::stateful_pointer<WriterState>;

/// The worker has lent the lanes.
void copy_out(Self self, const TakeSnapshot& msg) {
  WriterState& s = self->state;
  s.busy = true;
  s.mirror = msg.mirror;
  s.taken = msg.generation;
  WorkName work{WorkKind::kSnapshot, kTraining, 0, 0, msg.step};
  const uint64_t token = pack(work);
  work.kind = WorkKind::kQuiet;
  s.host->snapshots->enqueue_copies(token, pack(work), *s.host->sink);
  self->send(s.worker, SnapshotEnqueued{s.rank, msg.step, s.taken});
}

void write(Self self, int64_t step) {
  const std::shared_ptr<WriterHost>& host = self->state.host;
  const std::string& mirror = self->state.mirror;
  auto result = std::make_shared<SnapshotWritten>();
  result->rank = host->rank;
  result->step = step;
  result->taken = self->state.taken;
  host->services.storage->submit(
      [host, step, result, root = mirror.empty() ? host->root : mirror]() -> Status {
        SGA_ASSIGN(
            transport::WrittenPart written,
            host->snapshots->write(root, step, std::to_string(host->rank), host->shared->files));
        result->part = std::move(written.part);
        result->bytes_written = written.stats.bytes_written;
        result->bytes_reused = written.stats.bytes_reused;
        result->seconds = written.stats.seconds;
        return {};
      },
      [writer = WriterActor(self), result](const Status& status) {
        result->status = status;
        caf::anon_send(writer, *result);
      });
}

WriterActor::behavior_type writer_actor(Self self, const std::shared_ptr<WriterHost>& host,
                                        const WorkerActor& worker,
                                        const CoordinatorActor& coordinator) {
  install_handlers(self);
  WriterState& s = self->state;
  s.rank = host->rank;
  s.host = host;
  s.worker = worker;
  s.coordinator = coordinator;
  host->sink->set_receiver(WriterActor(self));
  s.probe = Probe(host->shared, "checkpoint writer", s.rank);
  return {
      [self](const TakeSnapshot& msg) {
        WriterState& st = self->state;
        const auto span = st.probe.handle(self, "take_snapshot", msg.step);
        if (st.busy) {
          st.next = msg;
        } else {
          copy_out(self, msg);
        }
      },
      [self](const WorkComplete& msg) {
        const WorkName work = unpack(msg.token);
        const auto span = self->state.probe.handle(self, "work_complete", work.step);
        if (!msg.status.ok()) return fail(self, msg.status, work.step);
        write(self, work.step);
      },
      [self](const SnapshotWritten& msg) {
        WriterState& st = self->state;
        const auto span = st.probe.handle(self, "snapshot_written", msg.step);
        // Without a mirror the run goes on: the coordinator decides.
        if (!msg.status.ok() && st.mirror.empty()) return fail(self, msg.status, msg.step);
        st.busy = false;
        self->send(st.coordinator, msg);
        if (const auto next = std::exchange(st.next, std::nullopt)) copy_out(self, *next);
      },
  };
}

}  // namespace

WriterActor spawn_writer(caf::local_actor* parent, const std::shared_ptr<WriterHost>& host,
                         const WorkerActor& worker, const CoordinatorActor& coordinator) {
  return parent->spawn<caf::linked + caf::monitored>(writer_actor, host, worker, coordinator);
}

}  // namespace sgactor::actors
