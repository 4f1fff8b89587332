#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"

#include <memory>
#include <string>

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
/// Bytes of the arenas that the busiest of `workers` processes holds: those of the ranks that it
/// hosts (deal_ranks), and of `validation` (null: none) beside rank 0's, whose parameters it reads.
int64_t hosted_bytes(const graph::Plan& plan, const graph::Plan* validation, int64_t workers);
/// Errors: kOutOfMemory, scope kDevice, with both sizes and the keys that make a plan smaller, if
/// hosted_bytes are more than the device has.
Status check_memory(const graph::Plan& plan, const kernels::Backend& backend,
                    const graph::Plan* validation = nullptr, int64_t workers = 1);

}  // namespace sgactor::apps
