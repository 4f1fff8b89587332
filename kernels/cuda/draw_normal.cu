// Random numbers of a fresh model. Compiled without contraction of products and sums.
#include "graph/base/standard_normal.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/draw_normal.h"

#include <algorithm>

namespace sgactor::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 16;

template <class T>
__global__ void normal_kernel(int64_t n, T* y, NormalNumbers numbers) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
    y[i] = static_cast<T>(normal_number(numbers, static_cast<uint64_t>(i)));
}

}  // namespace

Status draw_normal(std::byte* to, const TensorType& type, const NormalNumbers& numbers,
                   cudaStream_t stream) {
  const int64_t n = type.num_elements();
  if (n == 0) return {};
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, kMostBlocks));
  if (type.dtype == DType::kF32) {
    normal_kernel<<<blocks, kThreads, 0, stream>>>(n, reinterpret_cast<float*>(to), numbers);
  } else {
    normal_kernel<<<blocks, kThreads, 0, stream>>>(n, reinterpret_cast<double*>(to), numbers);
  }
  return launched();
}

}  // namespace sgactor::kernels::cuda
