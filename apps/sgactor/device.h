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
/// Errors: kOutOfMemory, scope kDevice, with both sizes, if the plan's arena cannot fit.
Status check_memory(const graph::Plan& plan, const kernels::Backend& backend);

}  // namespace sgactor::apps
