// Products of 8-bit floats, emulated: operands are widened to f32, which holds them and their
// products exactly, and go through the f32 matmul. M, N, K as in the op table.
#include "kernels/cpu/f8.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lowering.h"

#include <bit>
#include <cstring>
#include <type_traits>

namespace sgactor::kernels::cpu {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

struct QuantizePlan {
  ValueId x = kNoValue, amax = kNoValue, scale = kNoValue;
  ValueId q = kNoValue, transposed = kNoValue;   ///< kNoValue: not wanted
  ValueId seen = kNoValue, new_seen = kNoValue;  ///< kNoValue: not observed
  int64_t rows = 1, columns = 0;
};

QuantizePlan plan_quantize(const Lowering& low, const Op& op) {
  QuantizePlan p;
  p.x = op.operands[0];
  p.amax = op.operands[1];
  p.scale = op.results[1];
  if (op.kind == OpKind::kQuantizeF8Both) {
    p.q = op.results[0];
    p.transposed = op.results[3];
  } else {
    (op.attrs.flag("transposed") ? p.transposed : p.q) = op.results[0];
  }
  if (op.kind != OpKind::kQuantizeF8) {
    p.seen = op.operands[2];
    p.new_seen = op.results[2];
  }
  const Shape& shape = low.type(p.x).shape;
  p.columns = shape.rank() == 0 ? 1 : shape.dim(-1);
  p.rows = p.columns == 0 ? 0 : shape.num_elements() / p.columns;
  return p;
}

uint16_t as_bf16(float x) { return float_to_bf16(x); }
uint16_t as_bf16(uint16_t x) { return x; }

/// Rows [begin, end). Returns the bits of the largest magnitude, as bf16; those of NaNs are
/// largest.
template <DType kTo, class X>
uint16_t quantize_rows(const Frame& f, const QuantizePlan& p, float inverse, int64_t begin,
                       int64_t end) {
  const X* x = f.ptr<X>(p.x);
  auto* q = p.q == kNoValue ? nullptr : f.ptr<uint8_t>(p.q);
  auto* transposed = p.transposed == kNoValue ? nullptr : f.ptr<uint8_t>(p.transposed);
  uint16_t largest = 0;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t c = 0; c < p.columns; ++c) {
      const int64_t i = row * p.columns + c;
      const uint16_t bits = as_bf16(x[i]);
      largest = std::max(largest, static_cast<uint16_t>(bits & 0x7fffU));
      const uint8_t value = float_to_f8(kTo, bf16_to_float(bits) * inverse);
      if (q != nullptr) q[i] = value;
      if (transposed != nullptr) transposed[c * p.rows + row] = value;
    }
  }
  return largest;
}

template <DType kTo, class X>
void add_quantize(Lowering& low, const QuantizePlan& p) {
  const int64_t block = rows_per_block(p.columns);
  const int64_t num_blocks = ceil_div(p.rows, block);
  low.need_scratch(num_blocks * static_cast<int64_t>(sizeof(uint16_t)));
  low.add([=](const Frame& f) -> Status {
    const float scale = f8_scale(kTo, *f.ptr<float>(p.amax));
    auto* largest = reinterpret_cast<uint16_t*>(f.scratch);
    for_blocks(f, p.rows, block, [&](int64_t begin, int64_t end) {
      largest[begin / block] = quantize_rows<kTo, X>(f, p, 1 / scale, begin, end);
    });
    *f.ptr<float>(p.scale) = scale;
    if (p.seen == kNoValue) return {};
    // Bits of magnitudes are ordered as their numbers, with NaNs above all.
    uint32_t seen = *f.ptr<uint32_t>(p.seen);
    for (int64_t b = 0; b < num_blocks; ++b) {
      seen = std::max(seen, static_cast<uint32_t>(largest[b]) << 16);
    }
    *f.ptr<uint32_t>(p.new_seen) = seen;
    return {};
  });
}

template <class X>
void add_quantize_from(Lowering& low, const QuantizePlan& p, DType to) {
  if (to == DType::kF8E4M3) return add_quantize<DType::kF8E4M3, X>(low, p);
  add_quantize<DType::kF8E5M2, X>(low, p);
}

struct ScaledPlan {
  ValueId y = kNoValue;
  ValueId acc = kNoValue;  ///< of y's dtype: what the product is added to, if g.accumulate
  ValueId a = kNoValue, b = kNoValue, scale_a = kNoValue, scale_b = kNoValue;
  DType a_type = DType::kF8E4M3, b_type = DType::kF8E4M3, y_type = DType::kF32;
  Gemm g;
  // Offsets in scratch, in bytes: the operands in f32, the product where it is rounded, the gemm's.
  int64_t b_at = 0, y_at = 0, gemm_at = 0;
};

ScaledPlan plan_scaled(const Lowering& low, const Op& op) {
  ScaledPlan p;
  const bool accumulates = op.kind == OpKind::kScaledMatmulAccumulate;
  const bool adds = !accumulates && op.operands.size() > 4;
  const size_t first = accumulates ? 1 : 0;
  p.y = op.results[0];
  p.acc = op.operands[adds ? 4 : 0];
  p.a = op.operands[first];
  p.b = op.operands[first + 1];
  p.scale_a = op.operands[first + 2];
  p.scale_b = op.operands[first + 3];
  p.a_type = low.type(p.a).dtype;
  p.b_type = low.type(p.b).dtype;
  p.y_type = low.type(p.y).dtype;
  p.g = gemm_of(op, low.type(p.a).shape, low.type(p.b).shape);
  p.g.accumulate = adds || (accumulates && !low.starts_sum(p.acc));
  const Gemm& g = p.g;
  constexpr int64_t kFloat = sizeof(float);
  p.b_at = round_up(g.m * g.k * kFloat, 64);
  p.y_at = p.b_at + round_up(g.n * g.k * kFloat, 64);
  p.gemm_at = p.y_at + (p.y_type == DType::kF32 ? 0 : round_up(g.m * g.n * kFloat, 64));
  return p;
}

}  // namespace

Status lower_quantize_f8(Lowering& low, const Op& op) {
  const DType to = op.attrs.dtype("dtype");
  const DType from = low.type(op.operands[0]).dtype;
  if (from != DType::kF32 && from != DType::kBF16) return low.no_kernel(op);
  const QuantizePlan p = plan_quantize(low, op);
  if (from == DType::kF32) {
    add_quantize_from<float>(low, p, to);
  } else {
    add_quantize_from<uint16_t>(low, p, to);
  }
  return {};
}

Status lower_scaled_matmul(Lowering& low, const Op& op) {
  const ScaledPlan p = plan_scaled(low, op);
  if (p.y_type != DType::kF32 && p.y_type != DType::kBF16) return low.no_kernel(op);
  const ParallelGemm product(low.kernels(), p.g);
  const bool tiled = product.worthwhile();
  low.need_scratch(p.gemm_at +
                   (tiled ? product.scratch_bytes(low.num_threads()) : gemm_scratch_bytes()));
  low.add([p, product, tiled, k = &low.kernels()](const Frame& f) -> Status {
    auto* a = reinterpret_cast<float*>(f.scratch);
    auto* b = reinterpret_cast<float*>(f.scratch + p.b_at);
    const bool rounds = p.y_type != DType::kF32;
    float* y = rounds ? reinterpret_cast<float*>(f.scratch + p.y_at) : f.ptr<float>(p.y);
    // Scales are powers of two, so multiplying one operand by both is exact.
    const float factor = *f.ptr<float>(p.scale_a) * *f.ptr<float>(p.scale_b);
    widen_f8(f, p.a_type, f.ptr<uint8_t>(p.a), p.g.m * p.g.k, factor, a);
    widen_f8(f, p.b_type, f.ptr<uint8_t>(p.b), p.g.n * p.g.k, 1, b);
    if (p.g.accumulate && rounds) {
      widen_bf16(f, *k, p.g.m * p.g.n, f.ptr<uint16_t>(p.acc), y);
    } else if (p.g.accumulate && f.ptr<float>(p.acc) != y) {
      std::memcpy(y, f.ptr<float>(p.acc), static_cast<size_t>(p.g.m * p.g.n) * sizeof(float));
    }
    if (tiled) {
      product.run(*f.pool, a, b, y, f.scratch + p.gemm_at);
    } else {
      gemm(*k, p.g, a, b, y, reinterpret_cast<float*>(f.scratch + p.gemm_at));
    }
    if (rounds) round_bf16(f, *k, p.g.m * p.g.n, y, f.ptr<uint16_t>(p.y));
    return {};
  });
  return {};
}

Status lower_update_amax(Lowering& low, const Op& op) {
  const ValueId amax = op.operands[0];
  const ValueId seen = op.operands[1];
  const ValueId result = op.results[0];
  low.add([=](const Frame& f) -> Status {
    const float value = *f.ptr<float>(seen);
    const bool known = value > 0 && std::bit_cast<uint32_t>(value) < 0x7f800000U;
    *f.ptr<float>(result) = known ? value : *f.ptr<float>(amax);
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
