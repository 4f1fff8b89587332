#pragma once
#include "actors/protocol/interfaces.h"
#include "actors/runtime/program_context.h"
#include "actors/runtime/run_shared.h"
#include "kernels/backend/backend.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace sgactor::actors {

/// What a piece of work on a stream is, packed into the stream's 64-bit token.
enum class WorkKind : uint8_t {
  kLaunch = 0,
  kQuiet,   ///< success is not told: later work of the same stream tells it
  kCommit,  ///< marks that all work before a commit item is complete
  kEnd,     ///< the same for an end item
  kFeed,
  kSnapshot,
};
struct WorkName {
  WorkKind kind = WorkKind::kLaunch;
  ProgramId program = kTraining;
  int32_t lane = 0;
  int32_t micro_batch = 0;  ///< below 65536
  int64_t step = 0;         ///< below 2^36
};
uint64_t pack(const WorkName& work);
WorkName unpack(uint64_t token);

/// Turns completions of one actor's work into WorkComplete messages to it, ahead of other messages.
/// Of a lane's failures only the first is told, to whom it belongs. Runs on the backend's threads.
/// Counts kernel time of the lane and records kernels in the trace.
/// Must live until the streams it was given to are synchronized: kept by the run, not by the actor.
class ActorSink final : public kernels::CompletionSink {
 public:
  /// `lane_tracks`: trace track of each lane.
  ActorSink(std::shared_ptr<LaneSet> lanes, std::shared_ptr<RunShared> shared,
            std::vector<int32_t> lane_tracks, std::string_view name)
      : lanes_(std::move(lanes)),
        shared_(std::move(shared)),
        lane_tracks_(std::move(lane_tracks)),
        name_(name) {}
  /// Before the first work is launched.
  void set_receiver(LauncherActor receiver) { receiver_ = std::move(receiver); }
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;

 private:
  std::shared_ptr<LaneSet> lanes_;
  std::shared_ptr<RunShared> shared_;
  std::vector<int32_t> lane_tracks_;
  std::string_view name_;
  LauncherActor receiver_;
};

}  // namespace sgactor::actors
