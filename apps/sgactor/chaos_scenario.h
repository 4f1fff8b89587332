#pragma once
#include "graph/base/status.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::apps {

/// One fault of a scenario, for real processes or for a simulation.
struct ChaosFault {
  enum class Kind : uint8_t {
    kKillWorker = 0,  ///< SIGKILL
    kHangWorker,      ///< SIGSTOP
    kSlowWorker,      ///< SIGSTOP and SIGCONT in bursts shorter than suspicion: no recovery follows
    kKillNode,        ///< SIGKILL of the worker's node, and so of all its workers
    kKillActor,       ///< an exception leaves a handler of one of the worker's actors
    kDiskFull,        ///< the worker's next write of a checkpoint or mirror finds no space
    kTornWrite,       ///< the worker dies in the middle of that write
    kXid,             ///< the worker's device reports XID `value`
    kStallWorker,     ///< one of the worker's actors does not return from a message; it beats on
    // Of the link from the rank's worker to that of `to_rank`:
    kDropFrame,        ///< a frame with data never comes
    kDelayFrame,       ///< one, and those behind it, come `value` ms late
    kDuplicateFrame,   ///< one comes twice
    kCorruptFrame,     ///< a bit of one is another when it comes
    kPartition,        ///< nothing passes for `value` ms, in either direction
    kBitFlip,          ///< a bit of a gradient of the worker's first rank is another
    kKillCoordinator,  ///< the process that was started is killed, and started again with --resume
    kLoseHost,         ///< in a simulation: the host is silent from now on, as one without power is
  };
  Kind kind = Kind::kKillWorker;
  int64_t worker = -1;       ///< of those that host ranks then, in order; -1: the host of `rank`
  int64_t rank = -1;         ///< logical
  int64_t at_step = 0;       ///< strikes once this step is committed
  bool in_recovery = false;  ///< strikes as soon as the recovery from the one before has begun
  /// Above 0: at this message of the step behind at_step that the worker's actors handle
  /// (kKillWorker, kHangWorker, kKillActor, kStallWorker), or at this frame with data that goes
  /// over the link once at_step is committed (kDropFrame, kDelayFrame, kDuplicateFrame,
  /// kCorruptFrame).
  int64_t at_message = 0;
  /// kXid: the code; kDelayFrame, kPartition, of a simulation also kKillCoordinator: milliseconds.
  int64_t value = 0;
  int64_t to_rank = -1;  ///< of faults of a link: the other end; -1: any other worker's
  /// Of kKillWorker and kKillCoordinator: strikes when the recovery that follows enters "fence",
  /// "restore", "resume" or "replay", or (coordinator) when the next record is in the journal and
  /// nobody has heard of it: "journalled". Empty: at once.
  std::string phase;
  bool of_spare = false;  ///< with a phase: strikes the worker that takes over
  // In a simulation:
  int64_t host = -1;   ///< of kKillNode and kLoseHost: index of the cluster's, in place of a worker
  double at_part = 0;  ///< share of the step behind at_step that is done
  double at_time_s = -1;  ///< of the run, in place of a step; -1: none
};
[[nodiscard]] inline bool is_of_link(ChaosFault::Kind kind) {
  return kind >= ChaosFault::Kind::kDropFrame && kind <= ChaosFault::Kind::kPartition;
}
/// Strikes where its worker handles a message, not when somebody sees that it is time.
[[nodiscard]] inline bool is_trap(const ChaosFault& fault) {
  return fault.at_message > 0 && !is_of_link(fault.kind);
}
std::string_view to_string(ChaosFault::Kind kind);

struct ChaosScenario {
  int64_t workers = 2;
  int64_t spares = 0;
  int64_t nodes = 1;               ///< node processes, all on this host
  std::vector<ChaosFault> faults;  ///< in the order in which they strike
  /// In a simulation, mean time between failures of one device or host, each; 0: none fail.
  struct Rates {
    double device_hours = 0;
    double host_hours = 0;
    double device_steps = 0;
    double host_steps = 0;
    [[nodiscard]] bool any() const {
      return device_hours + host_hours + device_steps + host_steps > 0;
    }
  };
  Rates rates;
};

/// What a scenario's names are checked against.
struct ChaosLimits {
  int64_t num_ranks = 1;
  int64_t num_steps = 1;
  bool verifies = false;  ///< resilience.verify_interval is on: a draw may give bit flips
  /// Given: the scenario is for a simulation, in which each logical rank has a worker of its own.
  struct Cluster {
    std::vector<std::string> hosts;
    int64_t idle_devices = 0;  ///< beyond one a logical rank
    double seconds = 0;        ///< of the run without faults
  };
  std::optional<Cluster> simulated;
};

/// A TOML file:
///   workers = 2
///   spares = 1
///   nodes = 2              # 1 without; workers and spares are spread over them
///   [[fault]]
///   kind = "kill_worker"   # or another name of ChaosFault::Kind
///   worker = 1             # or rank = 3; drawn from the seed without either
///   at_step = 20           # drawn from the seed without; "recovery": of the fault before
///   at_message = 7         # at this message of the next step, or this frame of the link
///   xid = 79               # of kind "xid": a code of the driver
///   to_rank = 1            # of faults of a link; the rank behind the first one without
///   ms = 100               # of delay_frame and partition
///   phase = "restore"      # of kill_worker (with at_step = "recovery") and kill_coordinator
///   spare = true           # with phase: whoever takes over, in place of worker or rank
///   [random]               # further faults, drawn from the seed, in the first nine tenths of the
///   count = 3              # steps: workers killed, hung, slow; actors that fail; with two workers
///                          # faults of a link; with resilience.verify_interval bit flips
/// A simulation also reads, and chaos refuses, naming the key:
///   kind = "lose_host"     # silent from now on, where kill_node ends processes
///   host = "node3"         # of kill_node and lose_host, in place of worker or rank
///   at_part = 0.5          # with at_step: that share of the next step is done
///   at_time_s = 7200       # of the run, in place of at_step
///   ms = 30000             # of kill_coordinator: until it is started again
///   device_mtbf_hours, host_mtbf_hours, device_mtbf_steps, host_mtbf_steps   # of [random]
/// and has `workers` and `nodes` of its own: one worker a logical rank, on the cluster's hosts.
/// Equal text, limits and seed give the same scenario.
/// Errors: kInvalidArgument, "FILE:LINE: …" naming what does not exist, and what nobody would be
/// left to recover from (more nodes killed than all but one).
Result<ChaosScenario> parse_scenario(std::string_view toml, const std::string& file,
                                     const ChaosLimits& limits, uint64_t seed);

/// In order of `step`, one of the members; what strikes in a recovery stays behind the fault that
/// it follows.
template <class Fault>
void sort_by_step(std::vector<Fault>& faults, int64_t Fault::*step) {
  int64_t at = 0;
  std::vector<std::pair<int64_t, Fault>> order;
  for (Fault& fault : faults) {
    if (!fault.in_recovery) at = fault.*step;
    order.emplace_back(at, std::move(fault));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < faults.size(); ++i) faults[i] = std::move(order[i].second);
}

}  // namespace sgactor::apps
