// Casts between any two dtypes, rounded once.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <limits>
#include <type_traits>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::ValueId;

constexpr int kThreads = 256;

struct F8E4M3 {
  __nv_fp8_storage_t bits;
};
struct F8E5M2 {
  __nv_fp8_storage_t bits;
};

template <class T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;

/// To double, or to float where that is exact and quicker.
template <class T>
__device__ auto raise(T x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __bfloat162float(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else if constexpr (std::is_same_v<T, F8E4M3>) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
  } else if constexpr (std::is_same_v<T, F8E5M2>) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2)));
  } else {
    return x;
  }
}

/// Toward zero, defined for every input: NaN gives 0, what is too large the end of the range.
template <class Y, class X>
__device__ Y to_integer(X x) {
  const double v = static_cast<double>(x);
  if (v != v) return 0;
  constexpr Y kLow = std::numeric_limits<Y>::min();
  constexpr Y kHigh = std::numeric_limits<Y>::max();
  if (v >= static_cast<double>(kHigh)) return kHigh;
  if (v <= static_cast<double>(kLow)) return kLow;
  return static_cast<Y>(v);
}

template <class Y, class X>
__device__ Y to_float(X x) {
  if constexpr (std::is_same_v<X, int64_t> && !std::is_same_v<Y, double>) {
    return to_float<Y>(static_cast<double>(x));  // as the reference, which holds floats in double
  } else if constexpr (std::is_integral_v<X> && !std::is_same_v<X, int64_t>) {
    return to_float<Y>(static_cast<double>(x));
  } else if constexpr (std::is_same_v<Y, bf16>) {
    return narrow<bf16>(x);
  } else if constexpr (std::is_same_v<Y, __half>) {
    if constexpr (std::is_same_v<X, double>) {
      return __double2half(x);
    } else {
      return __float2half_rn(x);
    }
  } else if constexpr (std::is_same_v<Y, F8E4M3>) {
    if constexpr (std::is_same_v<X, double>) {
      return {__nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
    } else {
      return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
    }
  } else if constexpr (std::is_same_v<Y, F8E5M2>) {
    if constexpr (std::is_same_v<X, double>) {
      return {__nv_cvt_double_to_fp8(x, __NV_NOSAT, __NV_E5M2)};
    } else {
      return {__nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2)};
    }
  } else {
    return static_cast<Y>(x);
  }
}

template <class Y, class X>
__device__ Y convert(X x) {
  if constexpr (std::is_same_v<Y, X>) {
    return x;
  } else if constexpr (kIsInteger<Y> && kIsInteger<X>) {
    return static_cast<Y>(x);  // wraps
  } else if constexpr (kIsInteger<Y>) {
    return to_integer<Y>(raise(x));
  } else {
    return to_float<Y>(raise(x));
  }
}

template <int N, class Y, class X>
__global__ void cast_kernel(int64_t n, Y* y, const X* x) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    if (i + N <= n) {
      const Vec<X, N> in = load<N>(x + i);
      Vec<Y, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) out.v[j] = convert<Y>(in.v[j]);
      store<N>(y + i, out);
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = convert<Y>(x[j]);
    }
  }
}

template <class F>
void by_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      return f(Tag<double>{});
    case DType::kF32:
      return f(Tag<float>{});
    case DType::kBF16:
      return f(Tag<bf16>{});
    case DType::kF16:
      return f(Tag<__half>{});
    case DType::kF8E4M3:
      return f(Tag<F8E4M3>{});
    case DType::kF8E5M2:
      return f(Tag<F8E5M2>{});
    case DType::kI64:
      return f(Tag<int64_t>{});
    case DType::kI32:
      return f(Tag<int32_t>{});
    case DType::kU8:
      return f(Tag<uint8_t>{});
  }
}

}  // namespace

Status lower_cast(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t n = low.type(x).num_elements();
  by_dtype(low.type(x).dtype, [&](auto from) {
    by_dtype(low.type(y).dtype, [&](auto to) {
      using X = typename decltype(from)::type;
      using Y = typename decltype(to)::type;
      low.add([=](const Frame& f) -> Status {
        if (n == 0) return {};
        constexpr int N = 16 / static_cast<int>(std::min(sizeof(X), sizeof(Y)));
        cast_kernel<N>
            <<<blocks_for(n, kThreads * N), kThreads, 0, f.stream>>>(n, f.at<Y>(y), f.at<X>(x));
        return launched();
      });
    });
  });
  return {};
}

}  // namespace sgactor::kernels::cuda
