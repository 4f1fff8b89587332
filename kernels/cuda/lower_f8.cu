// Rounding to 8-bit floats, their products, and the scales of the next step. M, N, K as in the op
// table.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/quantize_f8.cuh"
#include "kernels/cuda/rounded_maker.h"

#include <array>
#include <string>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// A tensor as it is.
template <class X>
struct TensorSource {
  static constexpr int kOuts = 1;
  const X* x;
  __device__ __forceinline__ void read(int64_t /*row*/, int64_t /*column*/, int64_t at,
                                       Sixteen (&out)[1]) const {
    const Vec<X, 16> in = load<16>(x + at);
#pragma unroll
    for (int i = 0; i < 16; ++i) out[0].v[i] = rounded_bf16(in.v[i]);
  }
};

/// As it lies; n, of elements, is a multiple of 16.
template <DType kTo, class X>
__global__ void quantize_kernel(QuantizeArgs args, int64_t n, TensorSource<X> source) {
  const float inverse = start_quantize<kTo>(args);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * 16;
  uint32_t largest = 0;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 16; at < n;
       at += step) {
    Sixteen values[1];
    source.read(0, 0, at, values);
    *reinterpret_cast<uint4*>(args.q + at) = round_16<kTo>(values[0], inverse);
    largest = max(largest, largest_of(values[0]));
  }
  note_largest(args, largest);
}

/// Any shape, a thread an element.
template <DType kTo, class X>
__global__ void quantize_any_kernel(QuantizeArgs args, int64_t rows, int64_t columns, const X* x) {
  const float inverse = start_quantize<kTo>(args);
  const int64_t n = rows * columns;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t largest = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const float value = rounded_bf16(x[i]);
    largest = max(largest, magnitude_bits(value));
    const uint8_t byte = __nv_cvt_float_to_fp8(value * inverse, __NV_SATFINITE, kF8Format<kTo>);
    if (args.q != nullptr) args.q[i] = byte;
    if (args.transposed != nullptr) {
      const int64_t row = i / columns;
      args.transposed[(i - row * columns) * rows + row] = byte;
    }
  }
  note_largest(args, largest);
}

template <DType kTo, class X>
Status launch_quantize(const QuantizeArgs& args, int64_t rows, int64_t columns, const X* x,
                       cudaStream_t stream) {
  const int64_t n = rows * columns;
  if (args.transposed != nullptr && turns_by_tiles(rows, columns)) {
    return run_turned<kTo>(stream, QuantizeTargets<1>{{args}}, rows, columns, TensorSource<X>{x});
  }
  if (args.transposed == nullptr && n % 16 == 0 && n > 0) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(n / 16, 256), 2048));
    quantize_kernel<kTo, X><<<blocks, 256, 0, stream>>>(args, n, TensorSource<X>{x});
  } else {
    const auto blocks =
        static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n, int64_t{256}), 1, 4096));
    quantize_any_kernel<kTo, X><<<blocks, 256, 0, stream>>>(args, rows, columns, x);
  }
  return launched();
}

/// One launch for many scales.
struct AmaxBatch {
  static constexpr int kMost = 128;
  int count = 0;
  const float* amax[kMost];
  const float* seen[kMost];
  float* result[kMost];
};
__global__ void update_amax_kernel(AmaxBatch batch) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= batch.count) return;
  const float value = *batch.seen[i];
  *batch.result[i] = value > 0 && value < INFINITY ? value : *batch.amax[i];
}

}  // namespace

Status lower_quantize_f8(Lowering& low, const Op& op) {
  if (rounds_with_maker(low, op)) return lower_rounded_maker(low, op);
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
  const int64_t columns = shape.rank() == 0 ? 1 : shape.dim(-1);
  const int64_t rows = columns == 0 ? 0 : shape.num_elements() / columns;
  const auto add = [&](auto run) {
    low.add([=](const Frame& f) -> Status {
      QuantizeArgs args;
      args.amax = f.at<float>(amax);
      args.scale = f.at<float>(scale);
      if (q != kNoValue) args.q = f.at<uint8_t>(q);
      if (transposed != kNoValue) args.transposed = f.at<uint8_t>(transposed);
      if (observed) {
        args.seen = f.at<uint32_t>(new_seen);
        SGA_TRY(bring_seen(f, seen, new_seen));
      }
      return run(f, args);
    });
  };
  const auto add_from = [&](auto tag) {
    using X = typename decltype(tag)::type;
    if (to == DType::kF8E4M3) {
      add([=](const Frame& f, const QuantizeArgs& args) {
        return launch_quantize<DType::kF8E4M3, X>(args, rows, columns, f.at<X>(x), f.stream);
      });
    } else {
      add([=](const Frame& f, const QuantizeArgs& args) {
        return launch_quantize<DType::kF8E5M2, X>(args, rows, columns, f.at<X>(x), f.stream);
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
  const ValueId a = op.operands[first];
  const ValueId b = op.operands[first + 1];
  const ValueId scale_a = op.operands[first + 2];
  const ValueId scale_b = op.operands[first + 3];
  const ValueId result = op.results[0];
  const TensorType& y = low.type(result);
  MatmulShape s;
  s.trans_a = op.attrs.flag("trans_a");
  s.trans_b = op.attrs.flag("trans_b");
  s.m = y.shape.dim(-2);
  s.n = y.shape.dim(-1);
  s.k = low.type(a).shape.dim(s.trans_a ? -2 : -1);
  s.operands = low.type(a).dtype;
  s.operands_b = low.type(b).dtype;
  s.result = y.dtype;
  s.accumulate = accumulates && !starts_from_zero(low.body(), op);
  s.adds = !accumulates && op.operands.size() > 4;
  const ValueId c = s.adds ? op.operands[4] : result;
  auto product = create_scaled_product(low.device(), s);
  if (product.status().code() == Code::kUnsupported) return low.no_kernel(op);
  SGA_TRY(product.status());
  low.need_scratch(product->workspace_bytes);
  if (s.accumulate) {
    const ValueId acc = op.operands[0];
    const int64_t bytes = y.bytes();
    low.add([=](const Frame& f) -> Status {
      if (f.values[acc] == f.values[result] || bytes == 0) return {};
      SGA_CUDA_TRY(cudaMemcpyAsync(f.values[result], f.values[acc], static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToDevice, f.stream));
      return {};
    });
  }
  std::string family = product->plain ? "matmul f8, plain " : "matmul f8 ";
  if (low.device().profile() != nullptr && s.flops() > 1e9) family += s.name();
  low.add(
      [=, run = product->run](const Frame& f) {
        return run(f.stream, f.values[a], f.values[b], f.values[c], f.values[result], f.scratch,
                   {f.at<float>(scale_a), f.at<float>(scale_b)});
      },
      std::move(family));
  return {};
}

Status lower_update_amax(Lowering& low, const Op& op) {
  // The first of a body does them all, as far as they read what was there before the body ran.
  const graph::Graph& body = low.body();
  const auto joins = [&](const Op& other) {
    return other.kind == OpKind::kUpdateAmax &&
           body.value(other.operands[0]).producer == graph::kNoOp &&
           body.value(other.operands[1]).producer == graph::kNoOp;
  };
  std::vector<const Op*> ops;
  if (joins(op)) {
    for (const Op& other : body.ops()) {
      if (joins(other)) ops.push_back(&other);
    }
    if (ops[0] != &op) return {};
  } else {
    ops.push_back(&op);
  }
  for (size_t begin = 0; begin < ops.size(); begin += AmaxBatch::kMost) {
    const size_t end = std::min(begin + AmaxBatch::kMost, ops.size());
    std::vector<std::array<ValueId, 3>> values;
    for (size_t i = begin; i < end; ++i)
      values.push_back({ops[i]->operands[0], ops[i]->operands[1], ops[i]->results[0]});
    low.add([values](const Frame& f) -> Status {
      AmaxBatch batch;
      batch.count = static_cast<int>(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        batch.amax[i] = f.at<float>(values[i][0]);
        batch.seen[i] = f.at<float>(values[i][1]);
        batch.result[i] = f.at<float>(values[i][2]);
      }
      update_amax_kernel<<<1, AmaxBatch::kMost, 0, f.stream>>>(batch);
      return launched();
    });
  }
  return {};
}

}  // namespace sgactor::kernels::cuda
