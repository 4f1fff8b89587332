#pragma once
#include "graph/base/status.h"
#include "supervision/membership/guards.h"
#include "supervision/membership/heartbeats.h"
#include "supervision/membership/journal.h"
#include "supervision/membership/votes.h"
#include "supervision/policy/fault_policy.h"
#include "supervision/policy/storm_breaker.h"
#include "supervision/recovery/messages.h"
#include "supervision/recovery/placement.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sgactor::supervision {

struct CoordinatorOptions {
  int64_t last_step = 1;
  PlacementOptions placement;
  HeartbeatPolicy heartbeats;
  StormPolicy storms;
  int64_t announce_interval_us = 25'000;
  int64_t write_retry_us = 20'000;
  int64_t capacity_timeout_us = 60'000'000;  ///< how long to wait, frozen, for workers to come
  ProtocolGuards guards;
};

/// One change of membership that a fault has caused, as the coordinator sees it. Times in us.
struct RecoveryNote {
  int64_t generation = 0;
  FaultKind fault = FaultKind::kWorkerExit;
  std::vector<WorkerId> workers;  ///< taken for dead
  std::vector<NodeId> nodes;
  std::vector<RankId> ranks;  ///< that have a new life
  int64_t detected_us = 0;
  int64_t fenced_us = 0;  ///< the generation is durable and told; 0: not yet
};

/// The coordinator: who is a member, what is committed, where ranks live. Everything it decides
/// goes to the journal first and is told only then; what it tells is one World, again and again.
/// After a restart the journal is all it needs. Times are microseconds. Pure; one caller at a time.
class CoordinatorCore {
 public:
  /// `journal` holds at least the first membership. All members count as heard just now.
  CoordinatorCore(const CoordinatorOptions& options, const ReplayedJournal& journal,
                  int64_t now_us);

  void on_vote(const Vote& vote);
  void on_heartbeat(const Heartbeat& beat, int64_t now_us);
  void on_node_heartbeat(const NodeHeartbeat& beat, int64_t now_us);
  /// A detector's verdict about a worker, with the action that the policy gives it.
  void on_worker_fault(WorkerId worker, FaultKind kind, Action action, int64_t now_us);
  void on_lost(const Lost& lost);
  /// Looks for the silent. Call at least every heartbeat interval.
  void tick(int64_t now_us);

  /// The next entry to make durable; one at a time, until on_durable or on_write_failed.
  std::optional<JournalEntry> take_write(int64_t now_us);
  void on_durable(int64_t number, int64_t now_us);
  /// Nothing of the entry is in the journal; it will be offered again later.
  void on_write_failed(int64_t number, int64_t now_us);
  /// True if announced() should be told to all nodes and workers now: it has changed, or it is time
  /// to say it again.
  bool take_announcement(int64_t now_us);

  [[nodiscard]] const WorldRef& announced() const { return announced_; }
  [[nodiscard]] const World& decided() const { return decided_; }
  /// The last step is committed and durable.
  [[nodiscard]] bool finished() const { return announced_->committed >= options_.last_step; }
  /// Not ok: the job cannot go on (no room, state lost, storm, broken protocol). For the report.
  [[nodiscard]] const Status& failure() const { return failure_; }
  /// The rank whose state is lost, if that is the failure; else kNone.
  [[nodiscard]] RankId lost_rank() const { return lost_rank_; }
  [[nodiscard]] const std::vector<RecoveryNote>& recoveries() const { return recoveries_; }

 private:
  using Slot = std::pair<NodeId, int32_t>;
  void fault(WorkerId worker, FaultKind kind, Action action, int64_t now_us);
  void drop_node(NodeId node, int64_t now_us);
  void reconcile(FaultKind kind, int64_t now_us);
  void adopt_world(World next, FaultKind kind, int64_t now_us);
  void watch_members(int64_t now_us);
  void fail(Status status);

  CoordinatorOptions options_;
  World decided_;
  WorldRef announced_;
  Votes votes_;
  Heartbeats worker_beats_;
  Heartbeats node_beats_;
  StormBreaker storms_;
  std::set<WorkerId> dead_workers_;
  std::set<NodeId> dead_nodes_;
  std::set<Slot> quarantined_;
  std::map<WorkerId, Member> joining_;
  std::set<NodeId> joining_nodes_;

  std::vector<Record> pending_;
  std::optional<JournalEntry> in_flight_;
  World in_flight_world_;
  int64_t next_number_ = 0;
  int64_t retry_us_ = 0;
  bool changed_ = true;
  int64_t last_announced_us_ = 0;
  int64_t no_room_since_us_ = -1;
  Status failure_;
  RankId lost_rank_ = kNone;
  std::vector<RecoveryNote> recoveries_;
};

}  // namespace sgactor::supervision
