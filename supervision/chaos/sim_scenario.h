#pragma once
#include "supervision/chaos/symbolic_mesh.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::supervision {

/// Small generator of ours: standard distributions differ between libraries.
class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// 0 ... n - 1. Pre: n > 0.
  int64_t below(int64_t n);
  /// low ... high, both included.
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int32_t percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

enum class SimFaultKind : uint8_t {
  kKillWorker = 0,
  kKillNode,         ///< with its workers and its mirror
  kHangWorker,       ///< it stops, and wakes up later as if nothing had been
  kPartitionWorker,  ///< cut off from all other processes
  kPartitionNode,    ///< the node, its mirror and its workers
  kSlowWorker,       ///< everything it sends is late
  kKillCoordinator,  ///< what it was writing to its journal may be torn
  kDiskSlow,
  kDiskFull,
};
inline constexpr int32_t kNumSimFaultKinds = 9;
std::string_view to_string(SimFaultKind kind);

/// Moments of a recovery at which another fault may be told to strike.
enum class SimPhase : uint8_t {
  kDecided = 0,  ///< the coordinator has decided on a new membership
  kDurable,      ///< it is on disk, and nobody has been told
  kFetching,     ///< an adopter asks for its state
  kRestored,     ///< an adopter has its state and begins to replay
  kVoted,        ///< an adopter has voted for the first time
  kVoting,       ///< any rank's vote is on its way
  kCommitting,   ///< a commit is being written
};
inline constexpr int32_t kNumSimPhases = 7;
std::string_view to_string(SimPhase phase);

struct SimFault {
  enum class When : uint8_t {
    kAtEvent = 0,  ///< when that many events have been handled
    kAfterEvents,  ///< that many events after the fault before
    kAtPhase,      ///< when, after the fault before, the phase is reached for the events + 1st time
  };
  SimFaultKind kind = SimFaultKind::kKillWorker;
  When when = When::kAtEvent;
  int64_t events = 0;
  SimPhase phase = SimPhase::kDecided;
  bool at_subject = false;  ///< strike the one that reached the phase (the adopter), or its node
  uint64_t draw = 0;        ///< chooses the victim otherwise
  int64_t duration_us = 0;
  bool zombie = false;  ///< whoever is taken for dead is not killed: it comes back
  [[nodiscard]] std::string describe() const;
};

/// The network's manners. Delays are microseconds.
struct SimNetworkProfile {
  int64_t min_delay_us = 50;
  int64_t max_delay_us = 500;
  int32_t drop_percent = 0;
  int32_t duplicate_percent = 0;
  int32_t late_percent = 0;  ///< 3 to 23 ms more, so that later messages overtake
};

/// Everything a run depends on.
struct SimScenario {
  uint64_t seed = 1;
  SymbolicMesh mesh;
  int64_t steps = 6;
  int64_t state_interval = 2;
  int32_t num_nodes = 3;
  int32_t num_workers = 6;  ///< those beyond the ranks are spares
  int32_t max_ranks_per_worker = 4;
  bool respawn = true;  ///< a node starts a fresh worker for one that has gone
  SimNetworkProfile network;
  std::vector<SimFault> faults;
  ProtocolGuards guards;
  [[nodiscard]] std::string describe() const;
};

/// The scenario of a seed: mostly small meshes, now and then one of up to `max_workers` workers; up
/// to `max_faults` faults, of which most follow closely on the one before.
SimScenario scenario_of(uint64_t seed, int32_t max_faults, int32_t max_workers);

}  // namespace sgactor::supervision
