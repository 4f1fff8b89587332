#pragma once
#include "kernels/cuda/lowering.h"

namespace sgactor::kernels::cuda {

/// linear_cross_entropy_grad of 8-bit operands. Logits of a block of rows exist in bf16 in a
/// gap of the workspace (largest_gap), else in the scratch, and their gradients in 8 bits, both
/// ways where the op has the transposes of x and w: then every product finds the dim it sums over
/// last, as Hopper's matrix unit wants it.
Status lower_f8_head(Lowering& low, const graph::Op& op);

}  // namespace sgactor::kernels::cuda
