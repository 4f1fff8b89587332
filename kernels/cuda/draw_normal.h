#pragma once
#include "graph/base/normal_numbers.h"
#include "graph/base/shape.h"
#include "graph/base/status.h"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace sgactor::kernels::cuda {

/// Enqueues the making of a tensor of f32 or f64 at `to`, with the bits of normal_number on the
/// host. Pre: type.dtype is one of them. Errors: kDeviceFault.
Status draw_normal(std::byte* to, const TensorType& type, const NormalNumbers& numbers,
                   cudaStream_t stream);

}  // namespace sgactor::kernels::cuda
