#pragma once
#include "kernels/backend/backend.h"

#include <memory>

namespace sgactor::kernels {

/// A tensor is a 64-bit hash: of op kind, attributes, types and operand hashes; an input's of its
/// bytes. Order and identity of work show in the hash, so equal final hashes mean the same
/// computation. No thread; inline; a launch of any size takes about a microsecond.
Result<std::unique_ptr<Backend>> create_symbolic_backend(const BackendOptions& options);

}  // namespace sgactor::kernels
