#pragma once
#include "graph/base/f8.h"
#include "kernels/cpu/lowering.h"

#include <array>

namespace sgactor::kernels::cpu {

// Steps' tools for 8-bit floats: kernels work on f32, which holds them exactly. Work is spread over
// the frame's threads and done on return; every element is computed alone, so bits do not depend on
// how many there are.

/// to[i] = from[i] * factor of n elements of an 8-bit type. Exact for factors that are powers of
/// two.
inline void widen_f8(const Frame& f, DType type, const uint8_t* from, int64_t n, float factor,
                     float* to) {
  std::array<float, 256> values = f8_values(type);
  for (float& value : values) value *= factor;
  for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = values[from[i]];
  });
}

inline void widen_bf16(const Frame& f, const KernelTable& k, int64_t n, const uint16_t* from,
                       float* to) {
  for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
    k.bf16_to_f32(to + begin, from + begin, end - begin);
  });
}

inline void round_bf16(const Frame& f, const KernelTable& k, int64_t n, const float* from,
                       uint16_t* to) {
  for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
    k.f32_to_bf16(to + begin, from + begin, end - begin);
  });
}

}  // namespace sgactor::kernels::cpu
