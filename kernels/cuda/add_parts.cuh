#pragma once
// The sum of the parts of a product whose sum was cut.
#include "kernels/cuda/kernel_math.cuh"

namespace sgactor::kernels::cuda {

/// y = sum of the parts in their order, plus y if it accumulates. n is a multiple of N.
template <int N, class Y>
__global__ void add_parts_kernel(int parts, bool accumulate, int64_t n, const float* part_PN,
                                 Y* y) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= n) return;
  Vec<float, N> sum{};
  for (int p = 0; p < parts; ++p) {
    const Vec<float, N> part = load<N>(part_PN + p * n + i);
#pragma unroll
    for (int j = 0; j < N; ++j) sum.v[j] += part.v[j];
  }
  Vec<Y, N> out{};
  if (accumulate) out = load<N>(y + i);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float before = accumulate ? widen(out.v[j]) : 0.0F;
    out.v[j] = narrow<Y>(before + sum.v[j]);
  }
  store<N>(y + i, out);
}

/// Launches it for a result of f32 or bf16; n is a multiple of 4.
inline Status add_parts(cudaStream_t stream, int64_t parts, bool accumulate, int64_t n,
                        const float* sums, DType result, void* y) {
  const unsigned blocks = blocks_for(n / 4, 256);
  const auto count = static_cast<int>(parts);
  if (result == DType::kF32) {
    add_parts_kernel<4>
        <<<blocks, 256, 0, stream>>>(count, accumulate, n, sums, static_cast<float*>(y));
  } else {
    add_parts_kernel<4>
        <<<blocks, 256, 0, stream>>>(count, accumulate, n, sums, static_cast<bf16*>(y));
  }
  return launched();
}

}  // namespace sgactor::kernels::cuda
