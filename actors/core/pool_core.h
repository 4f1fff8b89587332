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

/// Leases of the slots of one rank's arena. Two slots that share a byte are never out at once, and
/// those that want the same bytes get them in the plan's order of all lanes (LaneItem::order), step
/// by step: a want waits for every earlier one it shares a byte with, even if that has not asked
/// yet. So no two can wait for each other; what shares no byte waits for nothing.
///
/// A slot that a stream's lane was granted goes back *in lane order*: when the last work that uses
/// it is on the stream, later work of that lane may have its bytes, since the stream runs in order;
/// work of another lane may have them once the first lane has completed that work (on_progress).
/// What a channel's lane was granted comes back when all its users are complete, and is free for
/// all. No thread, no clock; one caller at a time.
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
    std::vector<int32_t> users;     // wants of this slot, in order
    size_t next_user = 0;           // the first that has not been granted yet, in `next_step`
    int64_t next_step = 0;
    bool held = false;
    uint64_t serial = 0;
    int32_t lane = -1;     // of the last grant
    LanePoint last_use{};  // known once released
  };
  struct Want {
    int32_t lane = 0;
    int32_t position = 0;
    int64_t granted_step = -1;
    std::vector<int32_t> slots;
  };
  struct Lane {
    bool channel = false;
    LanePoint complete{-1, 0};
    std::vector<int32_t> wants;  // by position
  };
  struct Asked {
    int64_t step = 0;
    int32_t want = 0;  // index
    friend auto operator<=>(const Asked&, const Asked&) = default;
  };
  void list_wants(const Schedule& schedule, const std::vector<int32_t>& first_slot);
  void find_overlaps();
  [[nodiscard]] const int32_t* find_want(int32_t lane, int32_t position) const;
  [[nodiscard]] bool may_use(int32_t slot, const Asked& asked) const;
  [[nodiscard]] bool may_grant(const Asked& asked) const;
  void grant(const Asked& asked, std::vector<LeaseGrant>* grants);
  void pump(std::vector<LeaseGrant>* grants);

  std::vector<Slot> slots_;
  std::vector<Want> wants_;  // in the plan's order of all lanes
  std::vector<Lane> lanes_;
  std::vector<Asked> asked_;  // in that order, by step
  bool started_ = false;      // the first request has told the first step
  uint64_t next_serial_ = 1;
  PoolStats stats_;
};

}  // namespace sgactor::actors
