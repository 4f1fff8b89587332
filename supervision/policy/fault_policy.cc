#include "supervision/policy/fault_policy.h"

#include <array>

namespace sgactor::supervision {
namespace {

using enum Action;
// Columns: what must be thrown away, as Scope orders it.
using Row = std::array<Action, 6>;  // call, channel, actor, device, rank, job

constexpr std::array<Row, kNumFaultKinds> kPolicy = {{
    // kActorFailure: a larger scope means that the worker's state is not to be trusted.
    {kRetry, kRespawnActor, kRespawnActor, kReplaceWorker, kReplaceWorker, kStopJob},
    // kWorkerExit: nothing smaller than the worker is left.
    {kReplaceWorker, kReplaceWorker, kReplaceWorker, kReplaceWorker, kReplaceWorker, kStopJob},
    // kDeviceFault without an XID; a poisoned context dies with its process.
    {kReplaceWorker, kReplaceWorker, kReplaceWorker, kResetDevice, kReplaceWorker, kStopJob},
    // kHostLoss
    {kDropHost, kDropHost, kDropHost, kDropHost, kDropHost, kStopJob},
    // kHang: a process that is not heard cannot be asked to repair itself.
    {kReplaceWorker, kReplaceWorker, kReplaceWorker, kReplaceWorker, kReplaceWorker, kStopJob},
    // kPartition: one broken connection is made again; a worker cut off from all is replaced.
    {kRetry, kRetry, kReplaceWorker, kReplaceWorker, kReplaceWorker, kStopJob},
    // kSlowWorker: right, but late. Moving it is decided by whoever weighs the cost.
    {kIgnore, kIgnore, kIgnore, kIgnore, kIgnore, kStopJob},
    // kWrongBits: a device that lies once is not asked again.
    {kQuarantineDevice, kQuarantineDevice, kQuarantineDevice, kQuarantineDevice, kQuarantineDevice,
     kStopJob},
    // kStorageError: checkpoints are tried again; the next one is due anyway.
    {kRetry, kRetry, kRespawnActor, kIgnore, kIgnore, kStopJob},
    // kCoordinatorExit: workers wait for it, frozen.
    {kRestartCoordinator, kRestartCoordinator, kRestartCoordinator, kRestartCoordinator,
     kRestartCoordinator, kStopJob},
}};

}  // namespace

Action decide(FaultKind kind, Scope scope) {
  return kPolicy[static_cast<size_t>(kind)][static_cast<size_t>(scope)];
}

Action action_of(XidAction action) {
  switch (action) {
    case XidAction::kIgnore:
      return kIgnore;
    case XidAction::kRestartWorker:
      return kReplaceWorker;
    case XidAction::kResetDevice:
      return kResetDevice;
    case XidAction::kDrainHost:
      return kDrainHost;
    case XidAction::kRepair:
      return kQuarantineDevice;
  }
  return kResetDevice;
}

std::string_view to_string(FaultKind kind) {
  constexpr std::array<std::string_view, kNumFaultKinds> kNames = {
      "actor failure", "worker exit", "device fault", "host loss",     "hang",
      "partition",     "slow worker", "wrong bits",   "storage error", "coordinator exit"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view to_string(Action action) {
  constexpr std::array<std::string_view, 10> kNames = {
      "ignore",         "retry",        "respawn actor",
      "replace worker", "reset device", "quarantine device",
      "drain host",     "drop host",    "restart coordinator",
      "stop job"};
  return kNames[static_cast<size_t>(action)];
}

}  // namespace sgactor::supervision
