#pragma once
#include "kernels/backend/backend.h"
#include "kernels/cpu/device.h"

#include <memory>

namespace sgactor::kernels::cpu {

/// A stream with a thread of its own, which runs commands in order and reports completions.
/// Destruction finishes the queued work first. Errors: kInternal if no thread can be made.
Result<std::unique_ptr<Stream>> create_cpu_stream(std::shared_ptr<CpuDevice> device);

}  // namespace sgactor::kernels::cpu
