// Makers of 8-bit operands that round what they make. Letters: M rows, N columns.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/gated.cuh"
#include "kernels/cuda/quantize_f8.cuh"
#include "kernels/cuda/rounded_maker.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Graph;
using graph::kNoOp;
using graph::kNoValue;
using graph::Op;
using graph::OpId;
using graph::OpKind;
using graph::ValueId;

struct RoundedMaker {
  OpId maker = kNoOp;
  std::vector<OpId> rounders;  ///< one a rounded result, in the order of results
  OpId last = kNoOp;           ///< of the rounders
};

OpId id_of(const Graph& body, const Op& op) { return static_cast<OpId>(&op - &body.op(0)); }

/// Results of a maker that may be rounded; empty: no maker.
std::vector<uint32_t> rounded_results(OpKind kind) {
  switch (kind) {
    case OpKind::kSwiglu:
    case OpKind::kRmsNorm:
    case OpKind::kRotate:
      return {0};
    case OpKind::kAddRmsNorm:
      return {1};
    case OpKind::kSwigluGrad:
      return {0, 1};
    default:
      return {};
  }
}

/// What the kernel reads: operands of the maker, for norms what the maker itself has written.
std::vector<ValueId> values_read(const Op& maker) {
  switch (maker.kind) {
    case OpKind::kRmsNorm:
      return {maker.operands[0], maker.operands[1], maker.results[1]};
    case OpKind::kAddRmsNorm:
      return {maker.results[0], maker.operands[2], maker.results[2]};
    default:
      return maker.operands;
  }
}

/// The only op that reads v; kNoOp if there are several, none, or v leaves the body.
OpId only_user(const Graph& body, ValueId v) {
  for (const graph::GraphOutput& output : body.outputs()) {
    if (output.value == v) return kNoOp;
  }
  OpId user = kNoOp;
  for (OpId o = 0; o < body.ops().size(); ++o) {
    for (ValueId operand : body.op(o).operands) {
      if (operand != v) continue;
      if (user != kNoOp) return kNoOp;
      user = o;
    }
  }
  return user;
}

/// The quantize_f8_both op that alone reads v, perhaps through views.
OpId only_rounder(const Graph& body, ValueId v) {
  OpId user = only_user(body, v);
  while (user != kNoOp && body.op(user).kind == OpKind::kReshape) {
    v = body.op(user).results[0];
    user = only_user(body, v);
  }
  if (user == kNoOp || body.op(user).kind != OpKind::kQuantizeF8Both) return kNoOp;
  return body.op(user).operands[0] == v ? user : kNoOp;
}

/// Is what the kernel reads as it was when the last rounder runs, and untouched by its results?
bool reads_survive(const Lowering& low, const RoundedMaker& r) {
  const Graph& body = low.body();
  for (ValueId read : values_read(body.op(r.maker))) {
    for (OpId o = r.maker + 1; o <= r.last; ++o) {
      for (ValueId result : body.op(o).results) {
        if (overlap(low, read, result)) return false;
      }
    }
  }
  return true;
}

/// Does an op before the last rounder read what an earlier one has not written yet?
bool is_read_early(const Graph& body, const RoundedMaker& r) {
  for (OpId o = r.maker + 1; o < r.last; ++o) {
    for (ValueId operand : body.op(o).operands) {
      const OpId producer = body.value(operand).producer;
      if (std::find(r.rounders.begin(), r.rounders.end(), producer) != r.rounders.end())
        return true;
    }
  }
  return false;
}

/// Are rows of what the maker makes those of the matrix that is rounded?
bool fits(OpKind kind, const Shape& made, int64_t columns) {
  if (kind != OpKind::kRotate) return made.dim(-1) == columns;
  return made.dim(2) * made.dim(3) == columns && made.dim(3) % 32 == 0;  // 16 pairs at once
}

std::optional<RoundedMaker> find_rounded(const Lowering& low, OpId maker) {
  const Graph& body = low.body();
  const Op& op = body.op(maker);
  const std::vector<uint32_t> results = rounded_results(op.kind);
  RoundedMaker r;
  r.maker = maker;
  for (uint32_t result : results) {
    const ValueId v = op.results[result];
    if (low.type(v).dtype != DType::kBF16) return std::nullopt;
    const OpId rounder = only_rounder(body, v);
    if (rounder == kNoOp) return std::nullopt;
    const Shape& matrix = low.type(body.op(rounder).operands[0]).shape;
    if (!turns_by_tiles(matrix.dim(0), matrix.dim(1)) ||
        !fits(op.kind, low.type(v).shape, matrix.dim(1))) {
      return std::nullopt;
    }
    r.last = r.rounders.empty() ? rounder : std::max(r.last, rounder);
    r.rounders.push_back(rounder);
  }
  if (r.rounders.empty() || is_read_early(body, r) || !reads_survive(low, r)) return std::nullopt;
  const DType to = body.op(r.rounders[0]).attrs.dtype("dtype");
  for (OpId rounder : r.rounders) {
    if (body.op(rounder).attrs.dtype("dtype") != to) return std::nullopt;
  }
  return r;
}

/// The op that makes what a quantize op rounds, views left aside.
OpId maker_of(const Graph& body, const Op& rounder) {
  OpId maker = body.value(rounder.operands[0]).producer;
  while (maker != kNoOp && body.op(maker).kind == OpKind::kReshape)
    maker = body.value(body.op(maker).operands[0]).producer;
  return maker;
}

std::optional<RoundedMaker> find_by_rounder(const Lowering& low, const Op& rounder) {
  if (rounder.kind != OpKind::kQuantizeF8Both) return std::nullopt;
  const OpId maker = maker_of(low.body(), rounder);
  return maker == kNoOp ? std::nullopt : find_rounded(low, maker);
}

struct SwigluSource {
  static constexpr int kOuts = 1;
  const bf16* gate;
  const bf16* up;
  __device__ __forceinline__ void read(int64_t /*row*/, int64_t /*column*/, int64_t at,
                                       Sixteen (&out)[1]) const {
    const Vec<bf16, 16> g = load<16>(gate + at);
    const Vec<bf16, 16> u = load<16>(up + at);
#pragma unroll
    for (int i = 0; i < 16; ++i) out[0].v[i] = rounded_bf16(swiglu(g.v[i], u.v[i]));
  }
};

struct SwigluGradSource {
  static constexpr int kOuts = 2;
  const bf16* gate;
  const bf16* up;
  const bf16* dy;
  __device__ __forceinline__ void read(int64_t /*row*/, int64_t /*column*/, int64_t at,
                                       Sixteen (&out)[2]) const {
    const Vec<bf16, 16> g = load<16>(gate + at);
    const Vec<bf16, 16> u = load<16>(up + at);
    const Vec<bf16, 16> d = load<16>(dy + at);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const GatedGrad<bf16> grad = swiglu_grad(g.v[i], u.v[i], d.v[i]);
      out[0].v[i] = rounded_bf16(grad.gate);
      out[1].v[i] = rounded_bf16(grad.up);
    }
  }
};

struct NormSource {
  static constexpr int kOuts = 1;
  const bf16* x;
  const bf16* w;
  const float* rstd;
  __device__ __forceinline__ void read(int64_t row, int64_t column, int64_t at,
                                       Sixteen (&out)[1]) const {
    const Vec<bf16, 16> in = load<16>(x + at);
    const Vec<bf16, 16> factor = load<16>(w + column);
    const float scale = rstd[row];
#pragma unroll
    for (int i = 0; i < 16; ++i)
      out[0].v[i] = rounded_bf16(narrow<bf16>(widen(in.v[i]) * scale * widen(factor.v[i])));
  }
};

/// Heads in rows: element k of a head is paired with k + half. T time, K head dim.
struct RotateSource {
  static constexpr int kOuts = 1;
  const bf16* x;
  const bf16* cosines;  ///< [T, K / 2]
  const bf16* sines;
  uint32_t times, half;
  float sign;
  __device__ __forceinline__ void read(int64_t row, int64_t column, int64_t at,
                                       Sixteen (&out)[1]) const {
    // In 32 bits: divisions of 64 would take as long as the memory does.
    const uint32_t k = static_cast<uint32_t>(column) % (2 * half);
    const bool first = k < half;
    const int64_t angle =
        int64_t{static_cast<uint32_t>(row) % times} * half + (first ? k : k - half);
    const Vec<bf16, 16> own = load<16>(x + at);
    const Vec<bf16, 16> other = load<16>(first ? x + at + half : x + at - half);
    const Vec<bf16, 16> c = load<16>(cosines + angle);
    const Vec<bf16, 16> s = load<16>(sines + angle);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float sine = sign * widen(s.v[i]);
      const float y = first ? widen(own.v[i]) * widen(c.v[i]) - widen(other.v[i]) * sine
                            : widen(own.v[i]) * widen(c.v[i]) + widen(other.v[i]) * sine;
      out[0].v[i] = rounded_bf16(narrow<bf16>(y));
    }
  }
};

/// Values of one rounder.
struct RounderValues {
  ValueId amax, seen, new_seen, scale, q, transposed;
};

template <DType kTo, class MakeSource>
void add_kernel(Lowering& low, const RoundedMaker& r, std::string family, MakeSource make_source) {
  const Graph& body = low.body();
  std::vector<RounderValues> values;
  for (OpId o : r.rounders) {
    const Op& op = body.op(o);
    values.push_back({op.operands[1], op.operands[2], op.results[2], op.results[1], op.results[0],
                      op.results[3]});
  }
  const Shape& shape = low.type(body.op(r.last).operands[0]).shape;
  const int64_t rows = shape.dim(0);
  const int64_t columns = shape.dim(1);
  low.add(
      [=](const Frame& f) -> Status {
        const auto source = make_source(f);
        constexpr int kOuts = decltype(source)::kOuts;
        QuantizeTargets<kOuts> to;
        for (size_t t = 0; t < kOuts; ++t) {
          const RounderValues& v = values[t];
          SGA_TRY(bring_seen(f, v.seen, v.new_seen));
          to.args[t] = {f.at<float>(v.amax), f.at<float>(v.scale), f.at<uint32_t>(v.new_seen),
                        f.at<uint8_t>(v.q), f.at<uint8_t>(v.transposed)};
        }
        return run_turned<kTo>(f.stream, to, rows, columns, source);
      },
      std::move(family));
}

template <DType kTo>
void add_maker(Lowering& low, const RoundedMaker& r) {
  const Op& op = low.body().op(r.maker);
  const std::vector<ValueId> read = values_read(op);
  switch (op.kind) {
    case OpKind::kSwiglu:
      add_kernel<kTo>(low, r, "swiglu, rounded", [read](const Frame& f) {
        return SwigluSource{f.at<bf16>(read[0]), f.at<bf16>(read[1])};
      });
      break;
    case OpKind::kSwigluGrad:
      add_kernel<kTo>(low, r, "swiglu_grad, rounded", [read](const Frame& f) {
        return SwigluGradSource{f.at<bf16>(read[0]), f.at<bf16>(read[1]), f.at<bf16>(read[2])};
      });
      break;
    case OpKind::kRotate: {
      const Shape& shape = low.type(read[0]).shape;
      const auto times = static_cast<uint32_t>(shape.dim(1));
      const auto half = static_cast<uint32_t>(shape.dim(3) / 2);
      const float sign = op.attrs.flag("inverse") ? -1.0F : 1.0F;
      add_kernel<kTo>(low, r, "rotate, rounded", [=](const Frame& f) {
        return RotateSource{
            f.at<bf16>(read[0]), f.at<bf16>(read[1]), f.at<bf16>(read[2]), times, half, sign};
      });
      break;
    }
    default:
      add_kernel<kTo>(low, r, "norm, rounded", [read](const Frame& f) {
        return NormSource{f.at<bf16>(read[0]), f.at<bf16>(read[1]), f.at<float>(read[2])};
      });
  }
}

}  // namespace

bool is_rounded_when_made(const Lowering& low, const Op& op) {
  return find_rounded(low, id_of(low.body(), op)).has_value();
}

bool rounds_with_maker(const Lowering& low, const Op& op) {
  return find_by_rounder(low, op).has_value();
}

Status lower_rounded_maker(Lowering& low, const Op& op) {
  const std::optional<RoundedMaker> r = find_by_rounder(low, op);
  if (!r || r->last != id_of(low.body(), op)) return {};
  if (op.attrs.dtype("dtype") == DType::kF8E4M3) {
    add_maker<DType::kF8E4M3>(low, *r);
  } else {
    add_maker<DType::kF8E5M2>(low, *r);
  }
  return {};
}

Status bring_seen(const Frame& f, ValueId seen, ValueId new_seen) {
  if (f.values[seen] == f.values[new_seen]) return {};
  SGA_CUDA_TRY(cudaMemcpyAsync(f.values[new_seen], f.values[seen], sizeof(float),
                               cudaMemcpyDeviceToDevice, f.stream));
  return {};
}

}  // namespace sgactor::kernels::cuda
