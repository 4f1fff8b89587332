#pragma once
#include "kernels/backend/backend.h"

#include <memory>

namespace sgactor::kernels {

/// OpenBLAS matmuls (one thread a call) over tiles of a fixed cut; vectorised loops for the rest,
/// cut into fixed blocks. The cut depends on shapes only, so results have the same bits whatever
/// the number of threads. One thread a stream plus one shared pool of `num_threads` - 1 helpers; a
/// stream's thread takes part in its own work. Kernel families (baseline, avx2, avx512) are chosen
/// once by CPUID and are part of the fingerprint.
Result<std::unique_ptr<Backend>> create_cpu_backend(const BackendOptions& options);

}  // namespace sgactor::kernels
