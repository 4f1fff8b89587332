#pragma once
#include "kernels/backend/backend.h"

#include <memory>

namespace sgactor::kernels {

/// A tensor is a 64-bit hash: of op kind, attributes, types and operand hashes; an input's of its
/// bytes. Order and identity of work show in the hash, so equal final hashes mean the same
/// computation. A reshape has its operand's hash (it has its bytes); phase and segment do not show,
/// nor how work is cut into launches. read_tensor gives bytes that write_tensor turns back into the
/// hash (8 bytes or more), so that checkpoints restore it; smaller float tensors, such as a loss,
/// read as numbers in [1, 2). Zero bytes have the hash 0. No thread, no
/// clock (timings are 0); work runs inline, in some tens of nanoseconds an op.
Result<std::unique_ptr<Backend>> create_symbolic_backend(const BackendOptions& options);

}  // namespace sgactor::kernels
