#pragma once
#include "graph/base/status.h"
#include "kernels/cuda/attention.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sgactor::kernels::cuda {

/// The gradient of attention in bf16 by kernels of our own, for devices of compute capability 9:
/// tensors [B, T, heads, K], G divides H. Deterministic: every sum has one order, which depends on
/// the shape alone. Nothing of T x T is kept. Thread-safe.

/// Whether there are kernels for the shape: K 64 or 128, T at least 64.
[[nodiscard]] bool has_attention_gradient(const AttentionShape& shape);

/// Bytes of device memory that one run works in: eight for each query of each head.
[[nodiscard]] int64_t attention_gradient_workspace_bytes(const AttentionShape& shape);

/// Launches the kernels; dq, dk and dv are written when they have run. All pointers, the
/// workspace's too, are aligned to 16 bytes, and none may overlap an output. Pre:
/// has_attention_gradient(shape). Errors: kDeviceFault.
Status run_attention_gradient(cudaStream_t stream, const AttentionShape& shape,
                              const AttentionPointers& pointers, void* workspace);

}  // namespace sgactor::kernels::cuda
