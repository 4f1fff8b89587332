// Products of 8-bit floats: rounding with scales, and cuBLASLt's products with scale pointers. M,
// N, K as in the op table.
#include "graph/base/f8.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/matmul.h"

#include <cuda_fp8.h>

#include <climits>
#include <memory>
#include <string>

namespace sgactor::kernels::cuda {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

template <DType kTo>
inline constexpr __nv_fp8_interpretation_t kFormat = kTo == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;

/// What a quantize kernel reads and writes; null: not wanted.
struct QuantizeArgs {
  const float* amax = nullptr;
  float* scale = nullptr;
  uint32_t* seen = nullptr;  ///< bits of the largest magnitude; those of NaNs are above all numbers
  uint8_t* q = nullptr;
  uint8_t* transposed = nullptr;
  int64_t rows = 1, columns = 0;
};

__device__ __forceinline__ bf16 as_bf16(bf16 x) { return x; }
__device__ __forceinline__ bf16 as_bf16(float x) { return __float2bfloat16_rn(x); }

__device__ __forceinline__ uint32_t magnitude_bits(bf16 x) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(x) & 0x7fffU) << 16;
}

/// 1 / scale, which is exact. The first thread of the grid writes the scale.
template <DType kTo>
__device__ __forceinline__ float start_quantize(const QuantizeArgs& args) {
  const float scale = f8_scale(kTo, *args.amax);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *args.scale = scale;
  return 1.0F / scale;
}

/// All threads of the block call.
__device__ __forceinline__ void note_largest(const QuantizeArgs& args, uint32_t largest) {
  if (args.seen == nullptr) return;
  largest = block_reduce<MaxOp>(largest);
  // Order does not matter to a maximum, so the bits are the same in every run.
  if (threadIdx.x == 0) atomicMax(args.seen, largest);
}

/// 16 elements to 16 bytes.
template <DType kTo, class X>
__device__ __forceinline__ uint4 round_16(const Vec<X, 16>& x, float inverse, uint32_t* largest) {
  union {
    uint4 bytes;
    __nv_fp8x2_storage_t pairs[8];
  } out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bf16 low = as_bf16(x.v[2 * i]);
    const bf16 high = as_bf16(x.v[2 * i + 1]);
    *largest = max(*largest, max(magnitude_bits(low), magnitude_bits(high)));
    const float2 scaled = {__bfloat162float(low) * inverse, __bfloat162float(high) * inverse};
    out.pairs[i] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kFormat<kTo>);
  }
  return out.bytes;
}

/// As it lies; n a multiple of 16.
template <DType kTo, class X>
__global__ void quantize_kernel(QuantizeArgs args, const X* x) {
  const float inverse = start_quantize<kTo>(args);
  const int64_t n = args.rows * args.columns / 16;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t largest = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    reinterpret_cast<uint4*>(args.q)[i] = round_16<kTo, X>(load<16>(x + i * 16), inverse, &largest);
  }
  note_largest(args, largest);
}

constexpr int kTile = 64;

/// A block a tile of 64 x 64, a thread 16 columns of a row, then 16 rows of a column. Rows and
/// columns are multiples of 16.
template <DType kTo, class X>
__global__ void __launch_bounds__(256) quantize_turned_kernel(QuantizeArgs args, const X* x) {
  __shared__ uint32_t tile[kTile][kTile / 4 + 1];
  const float inverse = start_quantize<kTo>(args);
  const int line = threadIdx.x / 4;
  const int part = static_cast<int>(threadIdx.x % 4) * 16;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile + line;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + part;
  uint32_t largest = 0;
  if (row < args.rows && column < args.columns) {
    const int64_t at = row * args.columns + column;
    const uint4 bytes = round_16<kTo, X>(load<16>(x + at), inverse, &largest);
    if (args.q != nullptr) *reinterpret_cast<uint4*>(args.q + at) = bytes;
    uint32_t* to = &tile[line][part / 4];
    to[0] = bytes.x;
    to[1] = bytes.y;
    to[2] = bytes.z;
    to[3] = bytes.w;
  }
  __syncthreads();
  const int64_t out_row = static_cast<int64_t>(blockIdx.x) * kTile + line;
  const int64_t out_column = static_cast<int64_t>(blockIdx.y) * kTile + part;
  if (out_row < args.columns && out_column < args.rows) {
    union {
      uint4 words;
      uint8_t bytes[16];
    } out;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      out.bytes[i] = reinterpret_cast<const uint8_t*>(tile[part + i])[line];
    *reinterpret_cast<uint4*>(args.transposed + out_row * args.rows + out_column) = out.words;
  }
  note_largest(args, largest);
}

/// Any shape, a thread an element.
template <DType kTo, class X>
__global__ void quantize_any_kernel(QuantizeArgs args, const X* x) {
  const float inverse = start_quantize<kTo>(args);
  const int64_t n = args.rows * args.columns;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t largest = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const bf16 value = as_bf16(x[i]);
    largest = max(largest, magnitude_bits(value));
    const uint8_t byte =
        __nv_cvt_float_to_fp8(__bfloat162float(value) * inverse, __NV_SATFINITE, kFormat<kTo>);
    if (args.q != nullptr) args.q[i] = byte;
    if (args.transposed != nullptr) {
      const int64_t row = i / args.columns;
      args.transposed[(i - row * args.columns) * args.rows + row] = byte;
    }
  }
  note_largest(args, largest);
}

template <DType kTo, class X>
Status launch_quantize(const QuantizeArgs& args, const X* x, cudaStream_t stream) {
  const int64_t n = args.rows * args.columns;
  const bool grained = args.rows % 16 == 0 && args.columns % 16 == 0;
  const int64_t tiles_down = ceil_div(args.rows, int64_t{kTile});
  if (args.transposed == nullptr && n % 16 == 0 && n > 0) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(n / 16, 256), 2048));
    quantize_kernel<kTo, X><<<blocks, 256, 0, stream>>>(args, x);
  } else if (grained && n > 0 && tiles_down <= 65535) {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.columns, int64_t{kTile})),
                    static_cast<unsigned>(tiles_down));
    quantize_turned_kernel<kTo, X><<<grid, 256, 0, stream>>>(args, x);
  } else {
    const auto blocks =
        static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n, int64_t{256}), 1, 4096));
    quantize_any_kernel<kTo, X><<<blocks, 256, 0, stream>>>(args, x);
  }
  return launched();
}

__global__ void update_amax_kernel(const float* amax, const float* seen, float* result) {
  const float value = *seen;
  *result = value > 0 && value < INFINITY ? value : *amax;
}

__device__ __forceinline__ float f8_value(uint8_t bits, __nv_fp8_interpretation_t format) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, format)));
}

/// Shapes that the library refuses: a thread a result, sums in order of k.
template <class Y>
__global__ void plain_scaled_kernel(MatmulShape s, __nv_fp8_interpretation_t a_format,
                                    __nv_fp8_interpretation_t b_format, const uint8_t* a,
                                    const uint8_t* b, const float* scale_a, const float* scale_b,
                                    Y* y) {
  const int64_t total = s.m * s.n;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const float factor = *scale_a * *scale_b;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t m = i / s.n;
    const int64_t n = i - m * s.n;
    float sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const uint8_t left = s.trans_a ? a[k * s.m + m] : a[m * s.k + k];
      const uint8_t right = s.trans_b ? b[n * s.k + k] : b[k * s.n + n];
      sum += f8_value(left, a_format) * f8_value(right, b_format);
    }
    const float before = s.accumulate ? static_cast<float>(widen(y[i])) : 0.0F;
    y[i] = narrow<Y>(before + sum * factor);
  }
}

__nv_fp8_interpretation_t format_of(DType dtype) {
  return dtype == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
}

struct ScaledOperands {
  ValueId a = kNoValue, b = kNoValue, scale_a = kNoValue, scale_b = kNoValue, y = kNoValue;
};

template <class Y>
void add_plain_product(Lowering& low, const MatmulShape& s, const ScaledOperands& v) {
  low.add(
      [=](const Frame& f) -> Status {
        const int64_t total = s.m * s.n;
        if (total == 0) return {};
        plain_scaled_kernel<Y><<<blocks_for(total, 256), 256, 0, f.stream>>>(
            s, format_of(s.operands), format_of(s.operands_b), f.at<uint8_t>(v.a),
            f.at<uint8_t>(v.b), f.at<float>(v.scale_a), f.at<float>(v.scale_b), f.at<Y>(v.y));
        return launched();
      },
      "matmul f8, plain");
}

/// By the library, if it has an algorithm.
Result<bool> add_library_product(Lowering& low, const MatmulShape& s, const ScaledOperands& v) {
  const bool grained = s.m % 16 == 0 && s.n % 16 == 0 && s.k % 16 == 0 && s.m * s.n * s.k > 0;
  if (s.trans_a || !s.trans_b || !grained || std::max({s.m, s.n, s.k}) > INT_MAX) return false;
  auto made = Matmul::create(low.device(), s);
  if (made.status().code() == Code::kUnsupported) return false;
  SGA_TRY(made.status());
  low.need_scratch((*made)->workspace_bytes());
  std::string family = "matmul f8 ";
  if (low.device().profile() != nullptr && s.flops() > 1e9) family += s.name();
  low.add(
      [matmul = *made, v](const Frame& f) {
        return matmul->run(f.stream, f.values[v.a], f.values[v.b], f.values[v.y], f.scratch,
                           {f.at<float>(v.scale_a), f.at<float>(v.scale_b)});
      },
      std::move(family));
  return true;
}

}  // namespace

Status lower_quantize_f8(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const DType to = op.attrs.dtype("dtype");
  const DType from = low.type(x).dtype;
  if (from != DType::kF32 && from != DType::kBF16) return low.no_kernel(op);
  const bool both = op.kind == OpKind::kQuantizeF8Both;
  const bool observed = op.kind != OpKind::kQuantizeF8;
  const bool turned = !both && op.attrs.flag("transposed");
  const ValueId amax = op.operands[1];
  const ValueId scale = op.results[1];
  const ValueId seen = observed ? op.operands[2] : kNoValue;
  const ValueId new_seen = observed ? op.results[2] : kNoValue;
  const ValueId q = turned ? kNoValue : op.results[0];
  const ValueId transposed = both ? op.results[3] : turned ? op.results[0] : kNoValue;
  const Shape& shape = low.type(x).shape;
  QuantizeArgs sizes;
  sizes.columns = shape.rank() == 0 ? 1 : shape.dim(-1);
  sizes.rows = sizes.columns == 0 ? 0 : shape.num_elements() / sizes.columns;
  const auto add = [&](auto run) {
    low.add([=](const Frame& f) -> Status {
      QuantizeArgs args = sizes;
      args.amax = f.at<float>(amax);
      args.scale = f.at<float>(scale);
      if (q != kNoValue) args.q = f.at<uint8_t>(q);
      if (transposed != kNoValue) args.transposed = f.at<uint8_t>(transposed);
      if (observed) {
        args.seen = f.at<uint32_t>(new_seen);
        if (f.values[seen] != f.values[new_seen]) {
          SGA_CUDA_TRY(cudaMemcpyAsync(f.values[new_seen], f.values[seen], sizeof(float),
                                       cudaMemcpyDeviceToDevice, f.stream));
        }
      }
      return run(f, args);
    });
  };
  const auto add_from = [&](auto tag) {
    using X = typename decltype(tag)::type;
    if (to == DType::kF8E4M3) {
      add([x](const Frame& f, const QuantizeArgs& args) {
        return launch_quantize<DType::kF8E4M3, X>(args, f.at<X>(x), f.stream);
      });
    } else {
      add([x](const Frame& f, const QuantizeArgs& args) {
        return launch_quantize<DType::kF8E5M2, X>(args, f.at<X>(x), f.stream);
      });
    }
  };
  if (from == DType::kF32) {
    add_from(Tag<float>{});
  } else {
    add_from(Tag<bf16>{});
  }
  return {};
}

Status lower_scaled_matmul(Lowering& low, const Op& op) {
  const bool accumulates = op.kind == OpKind::kScaledMatmulAccumulate;
  const size_t first = accumulates ? 1 : 0;
  const ScaledOperands v = {op.operands[first], op.operands[first + 1], op.operands[first + 2],
                            op.operands[first + 3], op.results[0]};
  const TensorType& y = low.type(v.y);
  if (y.dtype != DType::kF32 && y.dtype != DType::kBF16) return low.no_kernel(op);
  MatmulShape s;
  s.trans_a = op.attrs.flag("trans_a");
  s.trans_b = op.attrs.flag("trans_b");
  s.m = y.shape.dim(-2);
  s.n = y.shape.dim(-1);
  s.k = low.type(v.a).shape.dim(s.trans_a ? -2 : -1);
  s.operands = low.type(v.a).dtype;
  s.operands_b = low.type(v.b).dtype;
  s.result = y.dtype;
  s.accumulate = accumulates;
  if (accumulates) {
    const ValueId acc = op.operands[0];
    const int64_t bytes = y.bytes();
    low.add([=](const Frame& f) -> Status {
      if (f.values[acc] == f.values[v.y] || bytes == 0) return {};
      SGA_CUDA_TRY(cudaMemcpyAsync(f.values[v.y], f.values[acc], static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToDevice, f.stream));
      return {};
    });
  }
  SGA_ASSIGN(const bool by_library, add_library_product(low, s, v));
  if (by_library) return {};
  if (y.dtype == DType::kF32) {
    add_plain_product<float>(low, s, v);
  } else {
    add_plain_product<bf16>(low, s, v);
  }
  return {};
}

Status lower_update_amax(Lowering& low, const Op& op) {
  const ValueId amax = op.operands[0];
  const ValueId seen = op.operands[1];
  const ValueId result = op.results[0];
  low.add([=](const Frame& f) -> Status {
    update_amax_kernel<<<1, 1, 0, f.stream>>>(f.at<float>(amax), f.at<float>(seen),
                                              f.at<float>(result));
    return launched();
  });
  return {};
}

}  // namespace sgactor::kernels::cuda
