#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

/// One fault of a scenario for real processes.
struct ChaosFault {
  enum class Kind : uint8_t { kKillWorker = 0, kHangWorker };
  Kind kind = Kind::kKillWorker;
  int64_t worker = -1;       ///< of those that host ranks then, in order; -1: the host of `rank`
  int64_t rank = -1;         ///< logical
  int64_t at_step = 0;       ///< strikes once this step is committed
  bool in_recovery = false;  ///< strikes as soon as the recovery from the one before has begun
};
std::string_view to_string(ChaosFault::Kind kind);

struct ChaosScenario {
  int64_t workers = 2;
  int64_t spares = 0;
  std::vector<ChaosFault> faults;  ///< in the order in which they strike
};

/// What a scenario's names are checked against.
struct ChaosLimits {
  int64_t num_ranks = 1;
  int64_t num_steps = 1;
};

/// A TOML file:
///   workers = 2
///   spares = 1
///   [[fault]]
///   kind = "kill_worker"   # or "hang_worker"
///   worker = 1             # or rank = 3; drawn from the seed without either
///   at_step = 20           # drawn from the seed without; "recovery": of the fault before
///   [random]               # further faults, drawn from the seed
///   count = 3
/// Errors: kInvalidArgument, "FILE:LINE: …" naming what does not exist.
Result<ChaosScenario> parse_scenario(std::string_view toml, const std::string& file,
                                     const ChaosLimits& limits, uint64_t seed);

}  // namespace sgactor::apps
