#pragma once
#include "actors/protocol/wire.h"
#include "actors/runtime/journal.h"
#include "actors/runtime/run_shared.h"
#include "actors/runtime/services.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/recovery_log.h"
#include "apps/sgactor/replay_check.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::apps {

/// How far a recovery in place is: the coordinator forgets votes of the dead; survivors write the
/// state that the dead had as well (where there is no mirror); workers are found that take over;
/// they load; everybody reaches everybody.
enum class AdoptionStage : uint8_t { kNone = 0, kFence, kCopy, kAdopters, kLoad, kJoin };

/// A worker that is sent `message` begins behind the point.
inline void begin_at(const ReplayCheck::Point& point, actors::wire::LoadPlan& message) {
  message.first_step = point.redo_to + 1;
  message.checkpoint = point.path;
  message.redo_from = point.redo_to > point.step ? point.step + 1 : 0;
}

/// What the attempts of a run share; of Cluster alone.
struct Cluster::Course {
  const Work* work = nullptr;
  std::unique_ptr<actors::BlockingService> storage, journal_service;
  std::shared_ptr<actors::Journal> journal;
  std::shared_ptr<actors::RunShared> shared;
  std::string mirror_root;  // empty: none
  std::unique_ptr<ReplayCheck> check;
  RecoveryLog log;
  int64_t generation = 1;
  ReplayCheck::Point from;
  actors::wire::LoadPlan message;  // but what differs among workers and attempts
  std::atomic<bool> stop{false};
  std::atomic<bool> pause{false};
  /// When all ranks were ready in this generation; 0: not yet. A "ready" of one before may come
  /// late.
  [[nodiscard]] int64_t ready_ms() const {
    const std::lock_guard lock(mutex);
    return ready_generation == generation ? ready_at : 0;
  }
  void note_ready(int64_t of) {
    const std::lock_guard lock(mutex);
    ready_generation = of;
    ready_at = now_ms();
  }
  std::optional<Recovery> recovery;  // under way
  int64_t recovery_ms = 0;           // when what it answers was detected
  int32_t recovery_index = -1;       // of the worker that was lost
  int64_t replayed_before = 0;
  int64_t progress_step = -1;  // the newest that was seen
  std::vector<int32_t> hosts;  // index of the worker that hosts each rank
  std::string last_failure;
  int64_t last_failure_step = -1;
  double step_seconds = 0;
  double kernel_seconds = 0;

  // --- recovery in place: cluster_adopt.cc ---
  struct InPlace {
    AdoptionStage stage = AdoptionStage::kNone;
    int64_t since_ms = 0;        // when the stage began
    size_t num_faults = 0;       // of faults_, that it answers
    std::set<int32_t> waiting;   // adopters that have no routes yet, by index
    ReplayCheck::Point point;    // what they load
    bool copies = false;         // which is on its way
    std::set<int32_t> respawns;  // workers whose actors have failed, by index
    std::set<int32_t> adopters;  // of the recovery under way, by index
  };
  InPlace in_place;
  bool adopts = false;  // survivors may keep what they have

  // --- state from replicas: cluster_replicas.cc ---
  int64_t committed = 0;                   // when the attempt before ended
  std::optional<actors::StepReport> owed;  // of that step, if it was not reported
  bool owed_whole = false;

  // --- taken over: cluster_takeover.cc ---
  bool taking_over = false;                     // the first attempt
  std::optional<actors::TakenOver> taken_over;  // by the attempt under way
  std::vector<int64_t> incarnations;            // of its ranks
  std::vector<int64_t> loss_bits;               // of the step committed last, as the journal has it
  bool all_fresh = false;                       // nobody has kept anything
  int64_t begun = 0;                            // newest step that a survivor has begun
  // What the coordinator has said, with the generation that it is about.
  std::atomic<int64_t> fenced_generation{0};
  std::atomic<int64_t> fenced_committed{-1};
  std::atomic<int64_t> suspended_generation{0};
  std::atomic<int64_t> suspended_ms{0};
  void note_suspended(const std::string& why) {
    const std::lock_guard lock(mutex);
    why_suspended = why;
    suspended_ms = now_ms();
  }
  [[nodiscard]] std::string suspended_why() {
    const std::lock_guard lock(mutex);
    return why_suspended;
  }
  /// A rank that something is wrong with, as the coordinator has found or heard.
  struct RankFault {
    int32_t rank = -1;
    Status why;
  };
  void note_wrong_bits(int32_t rank, const Status& why) {
    const std::lock_guard lock(mutex);
    wrong_bits = RankFault{rank, why};
  }
  [[nodiscard]] std::optional<RankFault> take_wrong_bits() {
    const std::lock_guard lock(mutex);
    return std::exchange(wrong_bits, std::nullopt);
  }
  mutable std::mutex mutex;
  int64_t ready_generation = 0, ready_at = 0;  // under the lock
  std::string why_suspended;                   // under the lock
  std::optional<RankFault> wrong_bits;         // under the lock
  /// Ranks whose actors have failed.
  void note_failed(int32_t rank, const Status& why) {
    const std::lock_guard lock(mutex);
    failed.push_back({rank, why});
  }
  [[nodiscard]] std::vector<RankFault> take_failed() {
    const std::lock_guard lock(mutex);
    return std::exchange(failed, {});
  }
  std::vector<RankFault> failed;  // under the lock
  int64_t respawns = 0;           // behind step:
  int64_t respawn_step = -1;
  int64_t link_faults = 0;  // that have been repaired in place behind step:
  int64_t link_fault_step = -1;

  [[nodiscard]] int64_t last_step() const { return work->spec.last_step; }
};

}  // namespace sgactor::apps
