#pragma once
#include "graph/base/status.h"

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

namespace sgactor::kernels::cuda {

/// The Status of a call of the CUDA runtime. Memory errors are kOutOfMemory of scope kCall; all
/// others kDeviceFault of scope kRank, since the context of the process is lost with most of them.
inline Status cuda_status(cudaError_t error,
                          std::source_location where = std::source_location::current()) {
  if (error == cudaSuccess) return {};
  const std::string text =
      std::string("cuda: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the next call must not report it again
    return make_status(Code::kOutOfMemory, text, Scope::kCall, where);
  }
  return make_status(Code::kDeviceFault, text, Scope::kRank, where);
}

/// Outcome of the kernel launches just made by this thread.
inline Status launched(std::source_location where = std::source_location::current()) {
  return cuda_status(cudaGetLastError(), where);
}

}  // namespace sgactor::kernels::cuda

#define SGA_CUDA_TRY(expr) SGA_TRY(::sgactor::kernels::cuda::cuda_status(expr))
