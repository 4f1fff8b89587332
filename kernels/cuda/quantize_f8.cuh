#pragma once
// Rounding to 8-bit floats, for whoever makes the numbers: a kernel is given a source that computes
// 16 neighbours of a row, and writes them as they lie, transposed or both. Letters: M rows, N
// columns.
#include "graph/base/f8.h"
#include "kernels/cuda/kernel_math.cuh"

#include <cuda_fp8.h>

namespace sgactor::kernels::cuda {

template <DType kTo>
inline constexpr __nv_fp8_interpretation_t kF8Format =
    kTo == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;

/// What a quantize kernel writes, and the scale it goes by; null: not wanted.
struct QuantizeArgs {
  const float* amax = nullptr;
  float* scale = nullptr;
  uint32_t* seen = nullptr;  ///< bits of the largest magnitude; those of NaNs are above all numbers
  uint8_t* q = nullptr;      ///< [M, N]
  uint8_t* transposed = nullptr;  ///< [N, M]
};

/// 16 neighbours of a row.
struct Sixteen {
  float v[16];
};

__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return __float_as_uint(x) & 0x7fffffffU;
}
/// As the op table has it, numbers are bf16 before they are 8 bits.
__device__ __forceinline__ float rounded_bf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
__device__ __forceinline__ float rounded_bf16(bf16 x) { return __bfloat162float(x); }

/// 1 / scale, which is exact. The first thread of the grid writes the scale.
template <DType kTo>
__device__ __forceinline__ float start_quantize(const QuantizeArgs& args) {
  const float scale = f8_scale(kTo, *args.amax);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *args.scale = scale;
  return 1.0F / scale;
}

/// What has been seen by now, by any block.
__device__ __forceinline__ uint32_t seen_so_far(const QuantizeArgs& args) {
  return args.seen == nullptr ? 0 : __ldcg(args.seen);
}
/// Order does not matter to a maximum, so the bits are the same in every run. `known`: of
/// seen_so_far; most blocks have nothing to add to it.
__device__ __forceinline__ void note_seen(const QuantizeArgs& args, uint32_t largest,
                                          uint32_t known) {
  if (args.seen != nullptr && largest > known) atomicMax(args.seen, largest);
}
/// All threads of the block call.
__device__ __forceinline__ void note_largest(const QuantizeArgs& args, uint32_t largest) {
  if (args.seen == nullptr) return;
  const uint32_t known = seen_so_far(args);
  largest = block_reduce<MaxOp>(largest);
  if (threadIdx.x == 0) note_seen(args, largest, known);
}

/// 16 numbers to 16 bytes, saturated.
template <DType kTo>
__device__ __forceinline__ uint4 round_16(const Sixteen& x, float inverse) {
  union {
    uint4 bytes;
    __nv_fp8x2_storage_t pairs[8];
  } out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 scaled = {x.v[2 * i] * inverse, x.v[2 * i + 1] * inverse};
    out.pairs[i] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kF8Format<kTo>);
  }
  return out.bytes;
}

__device__ __forceinline__ uint32_t largest_of(const Sixteen& x) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = max(largest, magnitude_bits(x.v[i]));
  return largest;
}

constexpr int kF8Tile = 64;

/// A tile of 64 x 64 bytes on its way from rows to columns.
using TurnedTile = uint32_t[kF8Tile][kF8Tile / 4 + 1];

__device__ __forceinline__ void put_16(TurnedTile& tile, int line, int part, uint4 bytes) {
  uint32_t* to = &tile[line][part / 4];
  to[0] = bytes.x;
  to[1] = bytes.y;
  to[2] = bytes.z;
  to[3] = bytes.w;
}

/// 16 rows of column `line` of the tile.
__device__ __forceinline__ uint4 take_16(const TurnedTile& tile, int line, int part) {
  union {
    uint4 words;
    uint8_t bytes[16];
  } out;
#pragma unroll
  for (int i = 0; i < 16; ++i)
    out.bytes[i] = reinterpret_cast<const uint8_t*>(tile[part + i])[line];
  return out.words;
}

/// Where a thread of 256 stands in a tile: 16 columns of a row, then 16 rows of a column.
struct TilePlace {
  int line = threadIdx.x / 4;
  int part = static_cast<int>(threadIdx.x % 4) * 16;
  int64_t row = static_cast<int64_t>(blockIdx.y) * kF8Tile + line;
  int64_t column = static_cast<int64_t>(blockIdx.x) * kF8Tile + part;
  int64_t out_row = static_cast<int64_t>(blockIdx.x) * kF8Tile + line;
  int64_t out_column = static_cast<int64_t>(blockIdx.y) * kF8Tile + part;
};

/// Largest magnitudes of a block of 256: each warp puts its own, a barrier, a thread takes them.
using WarpMaxima = uint32_t[8];
__device__ __forceinline__ void put_largest(WarpMaxima& maxima, uint32_t largest) {
  largest = __reduce_max_sync(0xffffffffU, largest);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = largest;
}
__device__ __forceinline__ uint32_t take_largest(const WarpMaxima& maxima) {
  uint32_t largest = maxima[0];
#pragma unroll
  for (int w = 1; w < 8; ++w) largest = max(largest, maxima[w]);
  return largest;
}

/// Tensors that one kernel rounds.
template <int kOuts>
struct QuantizeTargets {
  QuantizeArgs args[kOuts];
};

/// A block a tile. rows and columns are multiples of 16. `source.read(row, column, at, out)` fills
/// out[kOuts] for 16 columns from `column`, `at` elements into each [M, N].
template <DType kTo, class Source>
__global__ void __launch_bounds__(256)
    quantize_turned_kernel(QuantizeTargets<Source::kOuts> to, int64_t rows, int64_t columns,
                           Source source) {
  constexpr int kOuts = Source::kOuts;
  __shared__ TurnedTile tiles[kOuts];
  __shared__ WarpMaxima maxima[kOuts];
  const TilePlace place;
  const bool inside = place.row < rows && place.column < columns;
  const int64_t at = place.row * columns + place.column;
  // Ahead of the scales, so that nothing waits for these before the tensors are asked for.
  Sixteen values[kOuts];
  if (inside) source.read(place.row, place.column, at, values);
  uint32_t known[kOuts];
#pragma unroll
  for (int t = 0; t < kOuts; ++t) {
    known[t] = seen_so_far(to.args[t]);
    const float inverse = start_quantize<kTo>(to.args[t]);
    uint32_t largest = 0;
    if (inside) {
      const uint4 bytes = round_16<kTo>(values[t], inverse);
      largest = largest_of(values[t]);
      if (to.args[t].q != nullptr) *reinterpret_cast<uint4*>(to.args[t].q + at) = bytes;
      put_16(tiles[t], place.line, place.part, bytes);
    }
    put_largest(maxima[t], largest);
  }
  __syncthreads();
  if (place.out_row < columns && place.out_column < rows) {
#pragma unroll
    for (int t = 0; t < kOuts; ++t) {
      *reinterpret_cast<uint4*>(to.args[t].transposed + place.out_row * rows + place.out_column) =
          take_16(tiles[t], place.line, place.part);
    }
  }
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int t = 0; t < kOuts; ++t) note_seen(to.args[t], take_largest(maxima[t]), known[t]);
}

/// Can the kernel above do it?
inline bool turns_by_tiles(int64_t rows, int64_t columns) {
  return rows % 16 == 0 && columns % 16 == 0 && rows * columns > 0 &&
         ceil_div(rows, int64_t{kF8Tile}) <= 65535;
}

template <DType kTo, class Source>
Status run_turned(cudaStream_t stream, const QuantizeTargets<Source::kOuts>& to, int64_t rows,
                  int64_t columns, const Source& source) {
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, int64_t{kF8Tile})),
                  static_cast<unsigned>(ceil_div(rows, int64_t{kF8Tile})));
  quantize_turned_kernel<kTo><<<grid, 256, 0, stream>>>(to, rows, columns, source);
  return launched();
}

}  // namespace sgactor::kernels::cuda
