#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/fill_zeros.h"

#include <algorithm>

namespace sgactor::kernels::cuda {
namespace {

struct FillBatch {
  std::byte* to[kMostFills];
  uint32_t bytes[kMostFills];
};
static_assert(sizeof(FillBatch) <= 4096, "a kernel's arguments");

/// A block a place.
__global__ void fill_zeros_kernel(const __grid_constant__ FillBatch batch) {
  std::byte* to = batch.to[blockIdx.x];
  const uint32_t bytes = batch.bytes[blockIdx.x];
  const bool words = (reinterpret_cast<uintptr_t>(to) | bytes) % sizeof(uint32_t) == 0;
  if (words) {
    auto* word = reinterpret_cast<uint32_t*>(to);
    for (uint32_t i = threadIdx.x; i < bytes / sizeof(uint32_t); i += blockDim.x) word[i] = 0;
  } else {
    for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = std::byte{0};
  }
}

}  // namespace

Status fill_zeros(std::span<const ZeroPlace> places, cudaStream_t stream) {
  constexpr int kThreads = 128;
  while (!places.empty()) {
    const size_t count = std::min(places.size(), kMostFills);
    FillBatch batch;
    for (size_t i = 0; i < count; ++i) {
      batch.to[i] = places[i].to;
      batch.bytes[i] = static_cast<uint32_t>(places[i].bytes);
    }
    fill_zeros_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(batch);
    SGA_TRY(launched());
    places = places.subspan(count);
  }
  return {};
}

}  // namespace sgactor::kernels::cuda
