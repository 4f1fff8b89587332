#include "actors/runtime/completion.h"

#include <caf/send.hpp>

namespace sgactor::actors {

uint64_t pack(const WorkName& work) {
  return static_cast<uint64_t>(work.kind) | static_cast<uint64_t>(work.program) << 4 |
         static_cast<uint64_t>(work.lane) << 6 | static_cast<uint64_t>(work.micro_batch) << 12 |
         static_cast<uint64_t>(work.step) << 28;
}

WorkName unpack(uint64_t token) {
  WorkName work;
  work.kind = static_cast<WorkKind>(token & 15);
  work.program = static_cast<ProgramId>(token >> 4 & 3);
  work.lane = static_cast<int32_t>(token >> 6 & 63);
  work.micro_batch = static_cast<int32_t>(token >> 12 & 65535);
  work.step = static_cast<int64_t>(token >> 28);
  return work;
}

void ActorSink::on_complete(uint64_t token, const Status& status,
                            kernels::LaunchTiming timing) noexcept {
  const WorkName work = unpack(token);
  const auto index = static_cast<size_t>(work.lane);
  LaneSet::Lane& lane = lanes_->lanes[index];
  if (!status.ok()) {
    // Completions of a lane come in order, so whose work failed first is the one to report it.
    if (lane.failed.exchange(true)) return;
  } else if (work.kind == WorkKind::kQuiet) {
    return;
  } else if (work.kind == WorkKind::kLaunch) {
    lane.kernel_ns.fetch_add(timing.end_ns - timing.start_ns, std::memory_order_relaxed);
    shared_->tracer.slice(lane_tracks_[index], name_, timing.start_ns, timing.end_ns, work.step,
                          work.micro_batch);
  }
  caf::anon_send<caf::message_priority::high>(
      receiver_, WorkComplete{token, status, timing.start_ns, timing.end_ns});
}

}  // namespace sgactor::actors
