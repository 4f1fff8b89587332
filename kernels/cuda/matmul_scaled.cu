// Products of 8-bit floats: cuBLASLt's with scale pointers, and a plain kernel for what it refuses.
#include "kernels/cuda/add_parts.cuh"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/matmul.h"

#include <cuda_fp8.h>

#include <climits>

namespace sgactor::kernels::cuda {
namespace {

__device__ __forceinline__ float f8_value(uint8_t bits, __nv_fp8_interpretation_t format) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, format)));
}

__nv_fp8_interpretation_t format_of(DType dtype) {
  return dtype == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
}

/// A thread a result, sums in order of k. lda and ldb are elements from row to row.
template <class Y>
__global__ void plain_scaled_kernel(MatmulShape s, int64_t lda, int64_t ldb,
                                    __nv_fp8_interpretation_t a_format,
                                    __nv_fp8_interpretation_t b_format, const uint8_t* a,
                                    const uint8_t* b, const float* scale_a, const float* scale_b,
                                    const Y* c, Y* y) {
  const int64_t total = s.m * s.n;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const float factor = *scale_a * *scale_b;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t m = i / s.n;
    const int64_t n = i - m * s.n;
    float sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const uint8_t left = s.trans_a ? a[k * lda + m] : a[m * lda + k];
      const uint8_t right = s.trans_b ? b[n * ldb + k] : b[k * ldb + n];
      sum += f8_value(left, a_format) * f8_value(right, b_format);
    }
    const float before = c != nullptr ? static_cast<float>(widen(c[i])) : 0.0F;
    y[i] = narrow<Y>(before + sum * factor);
  }
}

template <class Y>
ScaledProduct plain_product(const MatmulShape& s) {
  ScaledProduct product;
  product.plain = true;
  const int64_t lda = s.stride_a > 0 ? s.stride_a : s.trans_a ? s.m : s.k;
  const int64_t ldb = s.stride_b > 0 ? s.stride_b : s.trans_b ? s.k : s.n;
  product.run = [=](cudaStream_t stream, const void* a, const void* b, const void* c, void* y,
                    void* /*workspace*/, MatmulScales scales) -> Status {
    const int64_t total = s.m * s.n;
    if (total == 0) return {};
    const void* start = s.accumulate ? y : s.adds ? c : nullptr;
    plain_scaled_kernel<Y><<<blocks_for(total, 256), 256, 0, stream>>>(
        s, lda, ldb, format_of(s.operands), format_of(s.operands_b), static_cast<const uint8_t*>(a),
        static_cast<const uint8_t*>(b), scales.a, scales.b, static_cast<const Y*>(start),
        static_cast<Y*>(y));
    return launched();
  };
  return product;
}

/// The parts of the sum as a batch into the workspace, then their sum.
Result<ScaledProduct> split_product(CudaDevice& device, const MatmulShape& s, int64_t parts) {
  MatmulShape piece = s;
  piece.batch = parts;
  piece.k = s.k / parts;
  piece.step_a = piece.k;
  piece.step_b = piece.k;
  piece.stride_a = s.stride_a > 0 ? s.stride_a : s.k;
  piece.stride_b = s.stride_b > 0 ? s.stride_b : s.k;
  piece.result = DType::kF32;
  piece.accumulate = false;
  SGA_ASSIGN(const auto matmul, Matmul::create(device, piece));
  const int64_t n = s.m * s.n;
  const int64_t sums_bytes = round_up(parts * n * 4, 256);
  ScaledProduct product;
  product.workspace_bytes = sums_bytes + matmul->workspace_bytes();
  product.run = [=](cudaStream_t stream, const void* a, const void* b, const void* /*c*/, void* y,
                    void* workspace, MatmulScales scales) -> Status {
    auto* sums = static_cast<float*>(workspace);
    SGA_TRY(
        matmul->run(stream, a, b, sums, static_cast<std::byte*>(workspace) + sums_bytes, scales));
    return add_parts(stream, parts, s.accumulate, n, sums, s.result, y);
  };
  return product;
}

Result<ScaledProduct> whole_product(CudaDevice& device, const MatmulShape& s) {
  SGA_ASSIGN(const auto matmul, Matmul::create(device, s));
  ScaledProduct product;
  product.workspace_bytes = matmul->workspace_bytes();
  product.run = [matmul](cudaStream_t stream, const void* a, const void* b, const void* c, void* y,
                         void* workspace, MatmulScales scales) {
    return matmul->run(stream, a, b, y, workspace, scales, c);
  };
  return product;
}

}  // namespace

Result<ScaledProduct> create_scaled_product(CudaDevice& device, const MatmulShape& shape) {
  MatmulShape s = shape;
  // Of the forward pass, whose results are rounded to 8 bits of fraction; gradients sum in f32.
  s.fast_sums =
      s.operands == DType::kF8E4M3 && s.operands_b == DType::kF8E4M3 && s.result == DType::kBF16;
  if (s.result != DType::kF32 && s.result != DType::kBF16) {
    return unsupported("cuda has no product " + s.name());
  }
  const bool grained = s.m % 16 == 0 && s.n % 16 == 0 && s.k % 16 == 0 && s.m * s.n * s.k > 0;
  if (!s.trans_a && s.trans_b && grained && std::max({s.m, s.n, s.k}) <= INT_MAX) {
    const int64_t parts = parts_of_sum(s.m, s.n, s.k);
    const bool cut =
        parts > 1 && !s.adds && s.k / parts % 64 == 0;  // parts begin as aligned as operands
    if (cut) {
      auto split = split_product(device, s, parts);
      if (split.ok() || split.status().code() != Code::kUnsupported) return split;
    }
    auto whole = whole_product(device, s);
    if (whole.ok() || whole.status().code() != Code::kUnsupported) return whole;
  }
  return s.result == DType::kF32 ? plain_product<float>(s) : plain_product<bf16>(s);
}

}  // namespace sgactor::kernels::cuda
