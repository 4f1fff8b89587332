#pragma once
#include "graph/base/status.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::kernels::cuda {

struct ZeroPlace {
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

/// Up to here a place is small: filled with others by one launch.
inline constexpr int64_t kSmallFill = int64_t{64} << 10;

/// Fills small places with zeros, `kMostFills` a launch: a run has hundreds of scalars to zero
/// before each step. Enqueues only.
inline constexpr size_t kMostFills = 240;
Status fill_zeros(std::span<const ZeroPlace> places, cudaStream_t stream);

}  // namespace sgactor::kernels::cuda
