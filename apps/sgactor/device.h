#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::apps {

/// "cpu:2" -> backend cpu with 2 threads; "cpu", "reference", "symbolic"; "cuda:all". The number
/// counts threads of the cpu backend and is not taken by others but cuda.
struct DeviceSpec {
  std::string backend;
  kernels::BackendOptions options;
};
/// Errors: kInvalidArgument "--devices …: expected …".
Result<DeviceSpec> parse_devices(const std::string& text);
/// Errors: kUnsupported, scope kDevice (exit code 3): unknown here, or why it is unavailable.
Result<std::unique_ptr<kernels::Backend>> create_device(const kernels::BackendTable& backends,
                                                        const DeviceSpec& device);
/// How a backend stores tensors, by what it says of one.
graph::StorageModel storage_model(const kernels::Backend& backend);

/// What ranks hold of a device beside the arenas of their plan.
struct HeldBeside {
  /// Beside the run's first rank, whose parameters it reads; null: none.
  const graph::Plan* validation = nullptr;
  bool snapshots = false;  ///< second copies of the state, which checkpoints are written from
  bool verifies = false;   ///< what executes steps again: a second arena, without parameters
};
/// Bytes that the ranks allocate together, but for scratch.
int64_t held_bytes(const graph::Plan& plan, const std::vector<int32_t>& ranks,
                   const HeldBeside& beside = {});

/// Where the ranks of a plan will run, as far as it is known before they do.
struct DeviceShare {
  HeldBeside beside;
  int64_t workers = 1;  ///< processes that ranks are dealt over (deal_ranks)
  /// Devices that the workers are dealt over in turn (deal_devices), of which the one that is asked
  /// is the first and the others have as much. 0: others than this, one for each worker.
  int64_t devices = 1;
  /// Memory that is taken counts as well: who has it is about to give it back.
  bool whole = false;
  const char* hint =
      nullptr;  ///< what takes less; null: the keys that make a training plan smaller
};
/// Devices that `--devices text` stands for on this host, as devices_of_host writes them. Errors:
/// as transport::count_devices.
Result<std::vector<std::string>> devices_here(const std::string& text);
/// Whether each device can hold what it is dealt: all that its ranks allocate, and what the backend
/// keeps beside that, within what is free (DeviceInfo::free_bytes, where that is known).
/// Errors: kOutOfMemory, scope kDevice, one line with what is needed, what there is, and the hint.
Status check_memory(const graph::Plan& plan, const kernels::Backend& backend,
                    const DeviceShare& share = {});
/// The same for some ranks of a plan, in this process. A process that has just died may give its
/// memory back a moment later: as long as the device as a whole is large enough, `backend` is
/// opened anew and asked again, for `patience_ms`. Blocks meanwhile.
Status await_memory(const kernels::BackendTable& backends, const DeviceSpec& device,
                    const graph::Plan& plan, const std::vector<int32_t>& ranks,
                    const HeldBeside& beside, int64_t patience_ms,
                    std::unique_ptr<kernels::Backend>& backend);

}  // namespace sgactor::apps
