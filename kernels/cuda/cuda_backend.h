#pragma once
#include "kernels/backend/backend.h"

namespace sgactor::kernels {

/// NVIDIA GPUs of compute capability 9.x (Hopper). Tensors in native storage. All f64, f32 and bf16
/// ops of the table; f16 and 8-bit floats can be cast and moved. f32 products use full f32
/// precision, never TF32; bf16 products accumulate in f32. Deterministic: the same launch has the
/// same bits in every run on one kind of GPU and one version of the libraries.
/// Errors: kUnsupported with what was found and what is needed.
Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions& options);

}  // namespace sgactor::kernels
