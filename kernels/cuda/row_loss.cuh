#pragma once
// The loss of rows of logits. Letters: N rows, V vocabulary.
#include "kernels/cuda/kernel_math.cuh"

#include <type_traits>

namespace sgactor::kernels::cuda {

/// Dtype of statistics beside T.
template <class T>
using Stat = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// f(std::integral_constant<int, N>) with as many lanes as rows of D elements allow.
template <class T, class F>
void by_lanes(int64_t D, F&& f) {
  if (D % kLanes<T> == 0) {
    f(std::integral_constant<int, kLanes<T>>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

/// Exponential of what is rounded to T in the end: quick where T has 16 bits.
template <class T>
__device__ __forceinline__ Compute<T> exp_for(Compute<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __expf(x);
  } else {
    return exp_of(x);
  }
}

/// A running maximum and the sum of exponentials below it (Milakov and Gimelshein, "Online
/// normalizer calculation for softmax", 2018). What is not above -inf does not count.
template <class T>
struct MaxAndSum {
  using C = Compute<T>;
  C max = -INFINITY;
  C sum = 0;
  template <int N>
  __device__ __forceinline__ void add(const Vec<T, N>& x) {
    C top = max;
#pragma unroll
    for (int j = 0; j < N; ++j) top = widen(x.v[j]) > top ? widen(x.v[j]) : top;
    if (top > max) {
      sum *= exp_for<T>(max - top);
      max = top;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C e = widen(x.v[j]);
      sum += e == top ? C(1) : e > -INFINITY ? exp_for<T>(e - top) : C(0);
    }
  }
  /// Log of the sum of all threads' sums, in every thread of the block.
  __device__ C log_of_block() const {
    const C largest = block_reduce<MaxOp>(max);
    const C part = sum == C(0) ? C(0) : sum * exp_of(max - largest);
    return largest + static_cast<C>(::log(block_reduce<SumOp>(part)));
  }
};

/// Log of the sum of exponentials of a row, in every thread of the block.
template <int N, class T>
__device__ Compute<T> row_log_sum_exp(int64_t V, const T* x_V) {
  MaxAndSum<T> own;
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < V; d += blockDim.x * N)
    own.add(load<N>(x_V + d));
  return own.log_of_block();
}

/// One block: sums in fixed order.
template <class S>
__global__ void sum_losses_kernel(int64_t n, const double* loss_N, S* y) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += loss_N[i];
  sum = block_reduce<SumOp>(sum);
  if (threadIdx.x == 0) *y = static_cast<S>(sum);
}

/// A block a row: lse, and the row's part of the loss (0 where the target is negative).
template <int N, class T, class S>
__global__ void cross_entropy_kernel(int64_t V, const T* logits_NV, const int32_t* targets_N,
                                     S* lse_N, double* loss_N) {
  const T* x = logits_NV + static_cast<int64_t>(blockIdx.x) * V;
  const Compute<T> lse = row_log_sum_exp<N>(V, x);
  if (threadIdx.x != 0) return;
  lse_N[blockIdx.x] = lse;
  const int32_t target = targets_N[blockIdx.x];
  loss_N[blockIdx.x] =
      target < 0 ? 0.0 : static_cast<double>(lse) - static_cast<double>(widen(x[target]));
}

}  // namespace sgactor::kernels::cuda
