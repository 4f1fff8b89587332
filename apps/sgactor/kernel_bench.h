#pragma once
#include "apps/sgactor/kernel_cases.h"
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <cstdint>

namespace sgactor::apps {

/// Seconds of one launch of a case: the fastest of as many rounds as `budget_s` has room for (at
/// least one, after one to warm up), by the host's clock. A round is several launches in a row
/// where one is short. Blocks. Errors: kUnsupported: the backend lacks the op; kOutOfMemory.
Result<double> time_kernel(kernels::Backend& backend, const KernelCase& kernel, double budget_s);

/// How fast a device's products and plain passes over memory are.
struct DeviceSpeed {
  double flops_per_s = 0;
  double bytes_per_s = 0;
};
/// Measures a product of square matrices in `dtype` and a sum of tensors beyond all caches, within
/// about `budget_s`. Errors: as time_kernel.
Result<DeviceSpeed> measure_device(kernels::Backend& backend, DType dtype, double budget_s);

}  // namespace sgactor::apps
