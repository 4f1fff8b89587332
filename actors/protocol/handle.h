#pragma once
#include "actors/core/lane_core.h"
#include "actors/core/pool_core.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace sgactor::kernels {
class Event;
}

namespace sgactor::actors {

/// The right to a slot of a memory pool. The pool's shell makes it; every handle on the slot shares
/// it; when the last goes, `give_back` tells the pool, exactly once. May end on any thread.
class Lease {
 public:
  /// Receives the lease and the last item of its lane that used it. Must not throw.
  using GiveBack = std::function<void(LeaseId lease, LanePoint last_use)>;
  Lease(LeaseId id, int32_t lane, LanePoint granted, GiveBack give_back)
      : id_(id), lane_(lane), last_use_(granted), give_back_(std::move(give_back)) {}
  ~Lease() { give_back_(id_, last_use_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  [[nodiscard]] int32_t lane() const { return lane_; }
  /// Work of the lease's own lane that uses the slot has been put on the stream. Called by the
  /// holder of that lane's token only, so calls follow each other. Users on other lanes keep their
  /// handle until their work is complete instead.
  void used(LanePoint at) {
    if (last_use_ < at) last_use_ = at;
  }

 private:
  LeaseId id_;
  int32_t lane_;
  LanePoint last_use_;
  GiveBack give_back_;
};

/// When a tensor's bytes are there. On the producer's lane: now, since a stream runs in order. On
/// any other lane: behind `event` (null if the producer has no consumer on another lane).
struct Readiness {
  int32_t lane = 0;
  LanePoint at;
  std::shared_ptr<kernels::Event> event;
};

/// A name for a tensor in a rank's arena; cheap to copy and to send. Never leaves its process.
struct TensorHandle {
  graph::BufferId buffer = graph::kNoBuffer;
  int32_t slot = 0;
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t rank = 0;
  int64_t incarnation = 1;
  int64_t generation = 1;
  Readiness readiness;
  std::shared_ptr<Lease> lease;  ///< null: persistent memory
};

}  // namespace sgactor::actors
