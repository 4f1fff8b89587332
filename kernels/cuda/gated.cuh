#pragma once
// Gates of the Llama family, for pointwise kernels and for those that round what they make.
#include "kernels/cuda/kernel_math.cuh"

namespace sgactor::kernels::cuda {

/// In 16-bit floats the quick exponential and division are below the rounding of the result, and
/// the memory, not they, sets the pace.
template <class T>
__device__ __forceinline__ Compute<T> sigmoid_for(Compute<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0F, 1.0F + __expf(-x));
  } else {
    return sigmoid_of(x);
  }
}

template <class T>
__device__ __forceinline__ T swiglu(T gate, T up) {
  const Compute<T> x = widen(gate);
  return narrow<T>(x * sigmoid_for<T>(x) * widen(up));
}

template <class T>
struct GatedGrad {
  T gate, up;
};
template <class T>
__device__ __forceinline__ GatedGrad<T> swiglu_grad(T gate, T up, T dy) {
  using C = Compute<T>;
  const C x = widen(gate);
  const C e = widen(dy);
  const C s = sigmoid_for<T>(x);
  return {narrow<T>(e * widen(up) * s * (C(1) + x * (C(1) - s))), narrow<T>(e * x * s)};
}

}  // namespace sgactor::kernels::cuda
