#pragma once
#include "actors/core/lane_core.h"
#include "actors/core/schedule.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <vector>

namespace sgactor::actors {

/// Names one grant of one slot. A serial is never used again.
struct LeaseId {
  int32_t slot = -1;  ///< index of the pool
  uint64_t serial = 0;
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
};

/// Slots granted for one item of a lane, in the order of LaneItem::leases.
struct LeaseGrant {
  int32_t lane = 0;
  LanePoint at;
  std::vector<LeaseId> leases;
};

struct PoolStats {
  /// Furthest byte of the arena that persistent buffers and leases have reached so far.
  int64_t high_water_bytes = 0;
  int64_t num_held = 0;     ///< leases out now
  int64_t num_granted = 0;  ///< leases ever
};

/// Leases of the slots of one rank's arena. Two slots that share a byte are never out at once. On a
/// lane, grants follow the planned order, so that two requests that want the same bytes cannot wait
/// for each other. A slot goes back *in lane order*: when the last work that uses it is on the
/// lane's stream, later work of that lane may have its bytes, since the stream runs in order; work
/// of another lane may have them once the first lane has completed that work (on_progress). No
/// thread, no clock; one caller at a time.
class PoolCore {
 public:
  /// Ranges are buffer offsets and bytes rounded up to `align_bytes`, as plan_memory lays them
  /// down. Persistent buffers are held for ever.
  PoolCore(const graph::RankProgram& program, const Schedule& schedule, int64_t align_bytes = 256);

  /// Item `at` of `lane` wants its slots. Grants that have become possible (this or others) are
  /// appended to `grants`. Errors: kInternal if the item has none, or asked before.
  Status request(int32_t lane, LanePoint at, std::vector<LeaseGrant>* grants);
  /// The last user has gone; `last_use` is the last item of the granted lane that used the slot.
  /// Errors: kInternal if that lease is not out: it comes back exactly once.
  Status release(LeaseId lease, LanePoint last_use, std::vector<LeaseGrant>* grants);
  /// All work of `lane` up to and including `at` is complete.
  void on_progress(int32_t lane, LanePoint at, std::vector<LeaseGrant>* grants);

  [[nodiscard]] const PoolStats& stats() const { return stats_; }
  [[nodiscard]] int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }

 private:
  struct Slot {
    int64_t begin = 0, end = 0;
    std::vector<int32_t> overlaps;  // other slots that share a byte
    bool held = false;
    uint64_t serial = 0;
    int32_t lane = -1;     // of the last grant
    LanePoint last_use{};  // known once released
  };
  struct Want {
    int32_t position = 0;
    std::vector<int32_t> slots;
  };
  struct LaneQueue {
    std::vector<Want> wants;  // items with leases, in order
    int64_t step = -1;        // of the head; -1: nothing asked yet
    size_t head = 0;
    std::vector<LanePoint> asked;
    LanePoint complete{-1, 0};
  };
  void find_overlaps();
  [[nodiscard]] bool may_use(int32_t slot, int32_t lane) const;
  [[nodiscard]] bool free_for(const Want& want, int32_t lane) const;
  void grant(const Want& want, int32_t lane, LanePoint at, std::vector<LeaseGrant>* grants);
  void pump(std::vector<LeaseGrant>* grants);

  std::vector<Slot> slots_;
  std::vector<LaneQueue> lanes_;
  uint64_t next_serial_ = 1;
  PoolStats stats_;
};

}  // namespace sgactor::actors
