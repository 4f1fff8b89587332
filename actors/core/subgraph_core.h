#pragma once
#include "actors/core/schedule.h"
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::actors {

/// State of one launch of one logical rank: which inputs are there for which (step, micro-batch),
/// and what has been executed. The identity of an execution is (logical rank, launch, step,
/// micro-batch); it runs once in an incarnation, whatever is sent again. Holds two steps: the open
/// one, and inputs of the next that come early. No allocation after construction. One caller at a
/// time.
class SubgraphCore {
 public:
  SubgraphCore() = default;
  SubgraphCore(int32_t rank, graph::LaunchId launch, const LaunchWiring& wiring);

  enum class Arrival : uint8_t {
    kWaiting = 0,  ///< taken; more inputs are missing
    kComplete,     ///< taken; it was the last one missing: leases may be asked for
    kRepeated,     ///< known already; drop the handle
    kLate,         ///< of an execution or a step that is over; drop the handle
  };
  struct Taken {
    Arrival arrival = Arrival::kWaiting;
    int32_t place = 0;  ///< where the caller keeps the handles of this execution, [0, num_places())
    int32_t awaited = 0;  ///< which of the awaited inputs
  };
  /// An input arrived. Errors: kInternal if it names no awaited input or micro-batch, or a step
  /// while an older one is still open in its place.
  Result<Taken> on_input(int32_t input, int64_t step, int32_t micro_batch);

  /// True if everything awaited is there (at once for a launch that awaits nothing).
  [[nodiscard]] bool inputs_ready(int64_t step, int32_t micro_batch) const;
  /// True the first time it is asked for an execution whose inputs are ready: leases are asked for
  /// once.
  [[nodiscard]] bool claim_leases(int64_t step, int32_t micro_batch);
  /// The execution has been put on the lane. Errors: kInternal if inputs are missing or it ran
  /// before in this incarnation.
  Status on_fired(int64_t step, int32_t micro_batch);
  /// True if on_fired was the last of the step: consumers that wait for all micro-batches may be
  /// told.
  [[nodiscard]] bool last_of_step(int64_t step) const;
  /// True if on_complete was the last of the step: what waits for completion may be told.
  [[nodiscard]] bool last_complete(int64_t step) const;
  /// The device has finished it. Errors: kInternal if it was not fired, or is complete already.
  Status on_complete(int64_t step, int32_t micro_batch);

  [[nodiscard]] int32_t num_places() const { return static_cast<int32_t>(places_.size()); }
  [[nodiscard]] int32_t place(int64_t step, int32_t micro_batch) const;
  [[nodiscard]] int64_t num_executed() const { return num_executed_; }
  [[nodiscard]] int64_t num_open() const;  ///< fired and not complete

 private:
  enum class Phase : uint8_t { kCollecting = 0, kClaimed, kFired, kComplete };
  struct Place {
    int64_t step = -1;
    int32_t num_arrived = 0;
    Phase phase = Phase::kComplete;
    std::vector<bool> arrived;
  };
  Result<Place*> open(int64_t step, int32_t micro_batch);
  [[nodiscard]] std::string identity(int64_t step, int32_t micro_batch) const;

  int32_t rank_ = 0;
  graph::LaunchId launch_ = graph::kNoLaunch;
  int32_t num_firings_ = 0;
  int32_t num_awaited_ = 0;
  std::vector<int32_t> awaited_index_;
  std::vector<Place> places_;
  int64_t fired_step_ = -1;
  int32_t fired_in_step_ = 0;
  int64_t complete_step_ = -1;
  int32_t complete_in_step_ = 0;
  int64_t num_executed_ = 0;
};

}  // namespace sgactor::actors
