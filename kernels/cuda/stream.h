#pragma once
#include "kernels/cuda/device.h"

#include <memory>

namespace sgactor::kernels::cuda {

/// A CUDA stream with two threads: one enqueues the work in the order given (so that callers never
/// wait, not even for an op that checks its ids), one waits for it and tells the sinks.
/// Errors: kDeviceFault; kInternal if a thread cannot be started.
Result<std::unique_ptr<Stream>> create_cuda_stream(std::shared_ptr<CudaDevice> device);

}  // namespace sgactor::kernels::cuda
