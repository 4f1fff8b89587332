#pragma once
#include "supervision/membership/heartbeats.h"
#include "supervision/policy/storm_breaker.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::supervision {

/// What is known of a run before it is there: sizes and times of its plan on a cluster. Logical
/// rank r begins on device r, each rank on one of its own; spares wait on the devices behind those.
struct TimelineRun {
  enum class Copies : uint8_t {
    kNone = 0,  ///< a loss ends the run
    kReplicas,  ///< data-parallel ranks write their state when it is needed
    kMirror,    ///< all ranks write theirs every mirror_interval steps
  };
  struct Rank {
    int64_t state_bytes = 0;  ///< parameters and moments
    int64_t input_bytes = 0;  ///< that one update reads beside them
    double update_s = 0;
    int32_t group = 0;  ///< ranks of one number hold the same state
  };
  int64_t steps = 1;
  double step_s = 1;           ///< by the cost model
  double further_rank_s = 1;   ///< what a step takes longer for each further rank of a worker
  double communication_s = 0;  ///< of a step
  int64_t firings = 1;         ///< launches of a rank in a step
  std::vector<Rank> ranks;
  std::vector<std::string> hosts;
  std::vector<int32_t> host_of_device;
  int32_t spares = 0;
  int64_t rank_bytes = 0;                 ///< of memory that a hosted rank takes
  int64_t device_bytes = INT64_MAX;       ///< of memory
  double network_bytes_per_s = INFINITY;  ///< that copies travel at; of one host: its memory's
  double latency_s = 0;
  Copies copies = Copies::kMirror;
  int64_t mirror_interval = 10;
  int64_t checkpoint_interval = 0;
  int64_t verify_interval = 0;
  StormPolicy storms;
  double orphan_s = 60;
  double progress_factor = 10;
  double progress_floor_s = 10;

  /// Of what a plan says nothing. Measured ones are medians of docs/benchmarks/recovery.md.
  struct Times {
    double exit_seen_s = 0.010;     ///< measured: a process ends until the coordinator knows
    HeartbeatPolicy heartbeats;     ///< of what is silent, half an interval after the last one
    double host_silent_s = 15;      ///< until links to a host that is gone are given up
    double broken_link_s = 0.3;     ///< a link is broken until somebody who waits says so
    double fence_s = 0.004;         ///< measured: the record of the generation is on disk and told
    double adopter_wait_s = 2;      ///< for a fresh worker, before the run goes on with fewer
    double fresh_s = 0.1;           ///< a worker begins until it can take ranks
    double ready_s = 0.02;          ///< a rank's actors, memory and links, beside reading its state
    double links_s = 0.02;          ///< links of workers that live are made again
    double attempt_s = 0.5;         ///< all actors end and begin again
    double takeover_s = 0.5;        ///< a coordinator that begins again until the run goes on
    double read_bytes_per_s = 2e9;  ///< at which a process reads or writes state
    double slow_s = 0.48;           ///< that a slow worker stands still for altogether
  };
  Times times;
};

enum class TimelineKind : uint8_t {
  kKillWorker = 0,
  kHangWorker,
  kStallWorker,  ///< it beats on
  kKillActor,
  kSlowWorker,
  kKillHost,  ///< its processes: whoever is linked to them sees it at once
  kLoseHost,  ///< it is silent from now on
  kKillCoordinator,
  kDeviceFault,     ///< XID `value`
  kFullDisk,        ///< at the next copy or checkpoint
  kTornWrite,       ///< the same, and the worker dies
  kBrokenLink,      ///< cut for `value` milliseconds
  kLateFrame,       ///< by `value` milliseconds
  kDuplicateFrame,  ///< nothing comes of it
  kWrongBits,
};

struct TimelineFault {
  enum class Victim : uint8_t {
    kRank = 0,  ///< whoever hosts it then
    kWorker,    ///< of those that host ranks then, in order of their devices
    kDevice,    ///< the worker there, whether or not it hosts ranks
    kHost,
  };
  TimelineKind kind = TimelineKind::kKillWorker;
  std::string what;  ///< as whoever asked calls it
  Victim victim = Victim::kRank;
  int64_t index = 0;
  int64_t step = 0;          ///< strikes once this step is committed …
  double part = 0;           ///< … and this share of the next one is done
  int64_t message = 0;       ///< above 0: in place of `part`, at this launch of the rank
  double time_s = -1;        ///< not below 0: at this time of the run, in place of step and part
  bool in_recovery = false;  ///< strikes in the recovery from the fault before
  bool restoring = false;    ///< … once state is being read, not as soon as the fault is known
  bool of_adopter = false;   ///< … whoever takes over
  int64_t value = 0;
};

/// One fault that has struck. Times are seconds.
struct TimelineRecord {
  std::string what;
  double time_s = 0;
  int64_t step = 0;  ///< committed
  double part = 0;   ///< of the next one that was done
  std::string victim;
  std::string action;     ///< what is done about it
  bool recovers = false;  ///< what follows, up to recovery_s, is there
  // After the fault:
  double detected_s = 0;
  double fenced_s = 0;
  double placed_s = 0;
  double restored_s = 0;
  double recovery_s = -1;  ///< first work that had never been done; -1: another fault was sooner

  int64_t ranks_moved = 0;
  int64_t state_moved_bytes = 0;
  double moved_s = 0;
  int64_t updates_again = 0;  ///< by each that took over, from kept inputs
  double replayed_s = 0;      ///< of the open step
  double lost_s = 0;          ///< by which the run ends later
  int32_t workers = 0;        ///< that host ranks afterwards
  int32_t spares = 0;         ///< that are idle afterwards, or on their way
};

struct Timeline {
  std::vector<TimelineRecord> records;  ///< in the order in which they struck
  int64_t missed = 0;                   ///< faults that were due behind the end
  int64_t steps_done = 0;
  double seconds = 0;
  double smaller_s = 0;  ///< that steps took longer for want of workers
  int32_t workers = 0;
  int32_t spares = 0;
  std::string ended;        ///< why the run ended before its last step; empty: it did not
  int64_t checkpoint = -1;  ///< newest on disk then; 0: none
};

/// Plays the run with these faults: the phases of a recovery by arithmetic, its decisions by
/// `decide`, `action_of` and StormBreaker. Faults given by steps strike in their order, two at one
/// moment together; `more` (may be empty) gives further ones in order of time_s, until it gives
/// none. Pure; equal arguments, equal results. Pre: rank, device and host numbers exist, and there
/// are as many devices as ranks and spares.
Timeline play_faults(const TimelineRun& run, std::vector<TimelineFault> faults,
                     const std::function<std::optional<TimelineFault>()>& more = {});

}  // namespace sgactor::supervision
