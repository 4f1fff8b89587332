#pragma once
#include "graph/base/status.h"
#include "supervision/policy/xid_table.h"

#include <cstdint>
#include <string_view>

namespace sgactor::supervision {

/// What a detector has seen. Detectors classify, they never decide.
enum class FaultKind : uint8_t {
  kActorFailure = 0,  ///< an actor has quit with a Status in a worker that is otherwise healthy
  kWorkerExit,        ///< the process is gone
  kDeviceFault,       ///< an XID, or a sticky error of the device's library
  kHostLoss,          ///< the node process is gone, or silent
  kHang,              ///< no progress, or a worker that is silent while its node is not
  kPartition,         ///< peers report a broken connection to a worker that is heard
  kSlowWorker,
  kWrongBits,  ///< two of three executions agree against it
  kStorageError,
  kCoordinatorExit,
};
inline constexpr int32_t kNumFaultKinds = 10;
std::string_view to_string(FaultKind kind);

/// What a supervisor does. Ordered by what it costs.
enum class Action : uint8_t {
  kIgnore = 0,        ///< record it
  kRetry,             ///< the same operation again (a write, a send)
  kRespawnActor,      ///< in place, from the worker's state and logs
  kReplaceWorker,     ///< end the process; its ranks go elsewhere; its node starts a fresh one
  kResetDevice,       ///< the same, and the device is reset before a fresh worker starts on it
  kQuarantineDevice,  ///< end the worker and start none on that device again
  kDrainHost,         ///< move all ranks off the host at the next commit, then leave it
  kDropHost,          ///< the host is gone: its workers and mirrors too
  kRestartCoordinator,
  kStopJob,  ///< with a report
};
std::string_view to_string(Action action);

/// The whole policy: fault kind x how much its Status says must be thrown away. Pure.
Action decide(FaultKind kind, Scope scope);
/// For a device fault with an XID: the table's action in these words.
Action action_of(XidAction action);

}  // namespace sgactor::supervision
