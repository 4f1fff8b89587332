#pragma once
// Element types of kernels: f64 computes in double, f32 and bf16 in float. Loads and stores of 16
// bytes. Sums over a block in a fixed order.
#include "graph/base/dtype.h"
#include "graph/base/units.h"
#include "kernels/cuda/cuda_status.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace sgactor::kernels::cuda {

using bf16 = __nv_bfloat16;

template <class T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
/// What arithmetic on T is done in.
template <class T>
using Compute = typename ComputeOf<T>::type;

template <class T>
__device__ __forceinline__ Compute<T> widen(T x) {
  return static_cast<Compute<T>>(x);
}
template <>
__device__ __forceinline__ float widen<bf16>(bf16 x) {
  return __bfloat162float(x);
}
template <class T, class C>
__device__ __forceinline__ T narrow(C x) {
  if constexpr (std::is_same_v<T, bf16> && std::is_same_v<C, double>) {
    return __double2bfloat16(x);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16_rn(x);
  } else {
    return static_cast<T>(x);
  }
}

/// N elements moved at once, in accesses of 16 bytes where they are as long.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
};
template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, class T>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& x) {
  *reinterpret_cast<Vec<T, N>*>(p) = x;
}

/// Elements of T in 16 bytes.
template <class T>
inline constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

template <class C>
__device__ __forceinline__ C exp_of(C x) {
  if constexpr (std::is_same_v<C, double>) {
    return ::exp(x);
  } else {
    return expf(x);
  }
}
template <class C>
__device__ __forceinline__ C sigmoid_of(C x) {
  return C(1) / (C(1) + exp_of(-x));
}

template <class C>
__device__ __forceinline__ C warp_sum(C x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}
template <class C>
__device__ __forceinline__ C warp_max(C x) {
  for (int step = 16; step > 0; step /= 2) {
    const C other = __shfl_xor_sync(0xffffffffU, x, step);
    x = other > x ? other : x;
  }
  return x;
}

struct SumOp {
  template <class C>
  __device__ static C warp(C x) {
    return warp_sum(x);
  }
  template <class C>
  __device__ static C join(C a, C b) {
    return a + b;
  }
};
struct MaxOp {
  template <class C>
  __device__ static C warp(C x) {
    return warp_max(x);
  }
  template <class C>
  __device__ static C join(C a, C b) {
    return b > a ? b : a;
  }
};

/// The same value in every thread. Pre: blockDim.x is a multiple of 32, at most 1024; all threads
/// call. Safe to call again at once.
template <class Op, class C>
__device__ C block_reduce(C x) {
  __shared__ C parts[33];
  x = Op::warp(x);
  const int warps = blockDim.x / 32;
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    C all = parts[0];
    for (int w = 1; w < warps; ++w) all = Op::join(all, parts[w]);
    parts[32] = all;
  }
  __syncthreads();
  x = parts[32];
  __syncthreads();
  return x;
}

/// Threads for a row of `work` elements handled `per_thread` at a time.
inline int threads_for(int64_t work, int per_thread, int most = 1024) {
  const int64_t wanted = round_up(std::max<int64_t>(ceil_div(work, per_thread), 1), 32);
  return static_cast<int>(std::min<int64_t>(wanted, most));
}

/// Blocks of `per_block` for n elements; kernels loop over what is left beyond the limit.
inline unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(n, per_block), 1 << 30));
}

template <class T>
struct Tag {
  using type = T;
};
/// Calls f(Tag<T>) for f64, f32 or bf16. False for other dtypes.
template <class F>
bool by_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      f(Tag<double>{});
      return true;
    case DType::kF32:
      f(Tag<float>{});
      return true;
    case DType::kBF16:
      f(Tag<bf16>{});
      return true;
    default:
      return false;
  }
}

}  // namespace sgactor::kernels::cuda
