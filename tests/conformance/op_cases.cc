// Letters: B batch, T and S time, H query heads, G groups of heads, K head dim, D model dim, V
// vocabulary, N rows; M, N, K of a matmul.
#include "tests/conformance/op_cases.h"

#include "graph/ir/pointwise_program.h"
#include "tests/conformance/native.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace sgactor::testing {
namespace {

using graph::Attrs;
using graph::OpKind;
using graph::ValueId;
using Dims = std::vector<int64_t>;

/// Axes of a tensor of `rank` dims, ascending, each with probability one half.
Dims some_axes(CaseMaker& m, size_t rank) {
  Dims axes;
  for (size_t d = 0; d < rank; ++d) {
    if (m.flag()) axes.push_back(static_cast<int64_t>(d));
  }
  return axes;
}

/// The shape itself, a suffix of it, or a scalar.
Dims some_suffix(CaseMaker& m, const Dims& shape) {
  const int64_t first = m.integer(0, static_cast<int64_t>(shape.size()));
  return {shape.begin() + first, shape.end()};
}

void binary(CaseMaker& m, OpKind kind, Domain a, Domain b) {
  const Dims shape = m.dims(0, 3);
  const ValueId left = m.values(shape, a);
  m.op(kind, {left, m.values(some_suffix(m, shape), b)});
}
void binary_any(CaseMaker& m, OpKind kind) { binary(m, kind, Domain::kAny, Domain::kAny); }
void binary_div(CaseMaker& m, OpKind kind) { binary(m, kind, Domain::kAny, Domain::kNonZero); }
void binary_pow(CaseMaker& m, OpKind kind) { binary(m, kind, Domain::kPositive, Domain::kAny); }
void binary_choice(CaseMaker& m, OpKind kind) { binary(m, kind, Domain::kEven, Domain::kOdd); }

void unary_any(CaseMaker& m, OpKind kind) { m.op(kind, {m.values(m.dims(0, 3))}); }
void unary_positive(CaseMaker& m, OpKind kind) {
  m.op(kind, {m.values(m.dims(0, 3), Domain::kPositive)});
}
void scale(CaseMaker& m, OpKind kind) {
  m.op(kind, {m.values(m.dims(0, 3))}, attrs({{"factor", m.real(-2, 2)}}));
}
void add_scalar(CaseMaker& m, OpKind kind) {
  m.op(kind, {m.values(m.dims(0, 3))}, attrs({{"value", m.real(-2, 2)}}));
}
void cast(CaseMaker& m, OpKind kind) {
  const DType to = m.limits().differentiable ? m.pick({DType::kF64, DType::kF32})
                                             : m.pick({DType::kF64, DType::kF32, DType::kBF16});
  m.op(kind, {m.values(m.dims(0, 3))}, attrs({{"dtype", to}}));
}

void reshape(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 4);
  Dims to;
  if (m.flag()) {  // merge neighbours
    for (int64_t extent : shape) {
      if (!to.empty() && m.flag()) {
        to.back() *= extent;
      } else {
        to.push_back(extent);
      }
    }
  } else {  // ones between
    for (int64_t extent : shape) {
      if (m.flag()) to.push_back(1);
      to.push_back(extent);
    }
  }
  m.op(kind, {m.values(shape)}, attrs({{"shape", to}}));
}
void transpose(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 5);
  Dims perm(shape.size());
  std::iota(perm.begin(), perm.end(), 0);
  for (size_t i = 1; i < perm.size(); ++i)
    std::swap(perm[i], perm[static_cast<size_t>(m.integer(0, static_cast<int64_t>(i)))]);
  m.op(kind, {m.values(shape)}, attrs({{"perm", perm}}));
}
void slice(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 4);
  const int64_t axis = m.integer(0, static_cast<int64_t>(shape.size()) - 1);
  const int64_t extent = shape[static_cast<size_t>(axis)];
  const int64_t start = m.integer(0, extent - 1);
  m.op(kind, {m.values(shape)},
       attrs({{"axis", axis}, {"start", start}, {"size", m.integer(1, extent - start)}}));
}
void pad(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 4);
  m.op(kind, {m.values(shape)},
       attrs({{"axis", m.integer(0, static_cast<int64_t>(shape.size()) - 1)},
              {"before", m.integer(0, 3)},
              {"after", m.integer(0, 3)}}));
}
void concat(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const int64_t axis = m.integer(0, static_cast<int64_t>(shape.size()) - 1);
  std::vector<ValueId> operands;
  for (int64_t n = m.integer(1, 4); n > 0; --n) {
    Dims part = shape;
    part[static_cast<size_t>(axis)] = 1;
    const int64_t left = m.limits().max_elements / Shape(part).num_elements();
    part[static_cast<size_t>(axis)] =
        m.integer(1, std::clamp<int64_t>(left, 1, m.limits().max_dim));
    operands.push_back(m.values(part));
  }
  m.op(kind, operands, attrs({{"axis", axis}}));
}
void broadcast(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 4);
  const Dims axes = some_axes(m, shape.size());
  Dims from;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d)))
      from.push_back(shape[d]);
  }
  m.op(kind, {m.values(from)}, attrs({{"shape", shape}, {"axes", axes}}));
}
void constant(CaseMaker& m, OpKind kind) {
  m.op(kind, {},
       attrs({{"value", nearest(m.limits().dtype, m.real(-2, 2))},
              {"shape", m.dims(0, 3)},
              {"dtype", m.limits().dtype}}));
}

void reduce(CaseMaker& m, OpKind kind, Domain domain) {
  const Dims shape = m.dims(0, 4);
  m.op(kind, {m.values(shape, domain)}, attrs({{"axes", some_axes(m, shape.size())}}));
}
void reduce_sum(CaseMaker& m, OpKind kind) { reduce(m, kind, Domain::kAny); }
void reduce_max(CaseMaker& m, OpKind kind) { reduce(m, kind, Domain::kDistinct); }
void sum_squares(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 3);
  const int64_t n = Shape(shape).num_elements();
  m.op(kind, {m.values(shape)}, attrs({{"chunk", m.integer(1, n + 1)}}));
}
void tree_sum(CaseMaker& m, OpKind kind) { m.op(kind, {m.values(m.dims(1, 1))}); }

/// Operand of a matmul: rows x columns behind `batch`, stored the other way round if transposed.
Dims matrix(Dims batch, int64_t rows, int64_t columns, bool transposed) {
  batch.push_back(transposed ? columns : rows);
  batch.push_back(transposed ? rows : columns);
  return batch;
}
void matmul(CaseMaker& m, OpKind kind) {
  const Dims mnk = {m.dim(), m.dim(), m.dim()};
  const int64_t budget =
      m.limits().max_elements / std::max({mnk[0] * mnk[2], mnk[1] * mnk[2], mnk[0] * mnk[1]});
  Dims batch;
  for (int64_t n = m.integer(0, 2), left = budget; n > 0; --n) {
    batch.push_back(
        m.integer(1, std::clamp<int64_t>(left, 1, std::min<int64_t>(4, m.limits().max_dim))));
    left /= batch.back();
  }
  const bool trans_a = m.flag();
  const bool trans_b = m.flag();
  std::vector<ValueId> operands = {m.values(matrix(batch, mnk[0], mnk[2], trans_a)),
                                   m.values(matrix(batch, mnk[2], mnk[1], trans_b))};
  if (m.flag()) operands.push_back(m.values(matrix(batch, mnk[0], mnk[1], false), Domain::kAny));
  m.op(kind, operands, attrs({{"trans_a", trans_a}, {"trans_b", trans_b}}));
}
void matmul_accumulate(CaseMaker& m, OpKind kind) {
  const Dims mnk = {m.dim(), m.dim(), m.dim()};
  const bool trans_a = m.flag();
  const bool trans_b = m.flag();
  const ValueId acc = m.values(m.stat(), {mnk[0], mnk[1]}, Domain::kAny);
  const ValueId a = m.values(matrix({}, mnk[0], mnk[2], trans_a));
  const ValueId b = m.values(matrix({}, mnk[2], mnk[1], trans_b));
  m.op(kind, {acc, a, b}, attrs({{"trans_a", trans_a}, {"trans_b", trans_b}}));
}

void last_dim(CaseMaker& m, OpKind kind) { m.op(kind, {m.values(m.dims(1, 3))}); }
void softmax_grad(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const ValueId x = m.values(shape);
  const ValueId dy = m.values(shape);
  m.op(kind, {m.builder().softmax(x), dy});
}
void same_pair(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 3);
  const ValueId first = m.values(shape);
  m.op(kind, {first, m.values(shape)});
}
void swiglu_grad(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 3);
  const ValueId gate = m.values(shape);
  const ValueId up = m.values(shape);
  m.op(kind, {gate, up, m.values(shape)});
}
void causal_mask(CaseMaker& m, OpKind kind) {
  const bool infinite = !m.limits().differentiable && m.flag();
  m.op(kind, {m.values(m.dims(2, 4))},
       attrs({{"fill", infinite ? -std::numeric_limits<double>::infinity() : 0.5}}));
}

double some_eps(CaseMaker& m) { return m.pick({1e-5, 1e-6, 1e-2}); }
void rms_norm(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const ValueId x = m.values(shape);
  m.op(kind, {x, m.values({shape.back()})}, attrs({{"eps", some_eps(m)}}));
}
void rms_norm_grad(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const ValueId x = m.values(shape, Domain::kNonZero);
  const ValueId w = m.values({shape.back()});
  const ValueId dy = m.values(shape);
  m.op(kind, {dy, x, w, m.builder().rms_norm(x, w, some_eps(m)).second});
}
void add_rms_norm(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const ValueId x = m.values(shape, Domain::kPositive);
  const ValueId r = m.values(shape, Domain::kPositive);
  m.op(kind, {x, r, m.values({shape.back()})}, attrs({{"eps", some_eps(m)}}));
}
void add_rms_norm_grad(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const ValueId s = m.values(shape, Domain::kNonZero);
  const ValueId w = m.values({shape.back()});
  const ValueId dy = m.values(shape);
  const ValueId ds = m.values(shape);
  m.op(kind, {dy, ds, s, w, m.builder().rms_norm(s, w, some_eps(m)).second});
}

void rope_table(CaseMaker& m, OpKind kind) {
  const auto scaling = m.pick({"none", "linear", "llama3"});
  m.op(kind, {},
       attrs({{"theta", m.pick({10000.0, 500000.0, 100.0})},
              {"head_dim", 2 * m.dim()},
              {"seq_len", m.integer(0, m.limits().max_dim)},
              {"scaling", std::string(scaling)},
              {"factor", m.pick({8.0, 32.0})},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position", m.pick({int64_t{64}, int64_t{8192}})},
              {"dtype", m.limits().dtype}}));
}
void rotate(CaseMaker& m, OpKind kind) {
  const Dims bth = m.dims(3, 3);
  const int64_t left = m.limits().max_elements / (2 * bth[0] * bth[1] * bth[2]);
  const int64_t half =
      m.integer(1, std::clamp<int64_t>(left, 1, std::min<int64_t>(m.limits().max_dim, 64)));
  const ValueId x = m.values({bth[0], bth[1], bth[2], 2 * half});
  const ValueId cos = m.values({bth[1], half});
  const ValueId sin = m.values({bth[1], half});
  m.op(kind, {x, cos, sin}, attrs({{"inverse", m.flag()}}));
}
void gather(CaseMaker& m, OpKind kind) {
  const int64_t rows = m.dim();
  const ValueId table = m.values({rows, m.dim()});
  m.op(kind, {table, m.integers(DType::kI32, m.dims(0, 2), 0, rows - 1)});
}
void scatter_add(CaseMaker& m, OpKind kind) {
  const int64_t rows = m.dim();
  Dims shape = m.dims(0, 2);
  const ValueId ids = m.integers(DType::kI32, shape, 0, rows - 1);
  shape.push_back(m.dim());
  m.op(kind, {ids, m.values(shape)}, attrs({{"rows", rows}}));
}
void cross_entropy(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(2, 2);
  const ValueId logits = m.values(shape);
  m.op(kind, {logits, m.integers(DType::kI32, {shape[0]}, -1, shape[1] - 1)});
}
void cross_entropy_grad(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(2, 2);
  const ValueId logits = m.values(shape);
  const ValueId targets = m.integers(DType::kI32, {shape[0]}, -1, shape[1] - 1);
  const ValueId dloss = m.scalar(m.stat(), m.real(0.5, 2));
  m.op(kind, {logits, targets, m.builder().cross_entropy(logits, targets).second, dloss});
}

void accumulate(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 3);
  const ValueId acc = m.values(m.stat(), shape, Domain::kAny);
  m.op(kind, {acc, m.values(shape)});
}
void philox_uniform(CaseMaker& m, OpKind kind) {
  const ValueId key = m.integers(DType::kI64, {2}, -1000000, 1000000);
  m.op(kind, {key}, attrs({{"shape", m.dims(0, 3)}, {"dtype", m.limits().dtype}}));
}

struct Attention {
  ValueId q, k, v;
  Dims q_shape;
  Attrs attrs;
};
Attention attention(CaseMaker& m) {
  const int64_t batch = m.integer(1, 2);
  const int64_t time = m.dim();
  const int64_t groups = m.integer(1, 2);
  const int64_t heads = groups * m.integer(1, 3);
  const int64_t head_dim = m.integer(1, std::min<int64_t>(m.limits().max_dim, 32));
  Attention a;
  a.q_shape = {batch, time, heads, head_dim};
  a.q = m.values(a.q_shape);
  a.k = m.values({batch, time, groups, head_dim});
  a.v = m.values({batch, time, groups, head_dim});
  a.attrs = attrs({{"scale", m.real(0.1, 0.5)}, {"causal", m.flag()}});
  return a;
}
void flash_attention(CaseMaker& m, OpKind kind) {
  const Attention a = attention(m);
  m.op(kind, {a.q, a.k, a.v}, a.attrs);
}
void flash_attention_grad(CaseMaker& m, OpKind kind) {
  const Attention a = attention(m);
  const ValueId grad = m.values(a.q_shape);
  const std::vector<ValueId> saved =
      m.builder().op(OpKind::kFlashAttention, {a.q, a.k, a.v}, a.attrs);
  m.op(kind, {grad, a.q, a.k, a.v, saved[0], saved[1]}, a.attrs);
}

/// Optimizer state is f32 or f64 whatever the dtype of the model.
void adamw(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 2);
  const DType dtype = m.stat();
  const ValueId p = m.values(dtype, shape, Domain::kAny);
  const ValueId moment1 = m.values(dtype, shape, Domain::kAny);
  const ValueId moment2 = m.values(dtype, shape, Domain::kPositive);
  const ValueId g = m.values(dtype, shape, Domain::kAny);
  const ValueId lr = m.scalar(dtype, m.real(0.001, 0.1));
  const ValueId clip = m.scalar(dtype, m.real(0.1, 1));
  const ValueId bias1 = m.scalar(dtype, m.real(0.1, 1));
  const ValueId bias2 = m.scalar(dtype, m.real(0.1, 1));
  m.op(kind, {p, moment1, moment2, g, lr, clip, bias1, bias2},
       attrs({{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}));
}

/// Scales keep the logits small: a gradient of theirs that falls to the next 8-bit number is then
/// a small part of the result.
void f8_head(CaseMaker& m, OpKind kind, int64_t rows, int64_t vocab, int64_t dim) {
  constexpr DType kF8 = DType::kF8E4M3;
  const bool transposed = m.flag();
  std::vector<ValueId> operands = {
      m.values(m.stat(), {vocab, dim}, Domain::kAny), m.values(kF8, {rows, dim}, Domain::kAny),
      m.values(kF8, {vocab, dim}, Domain::kAny), m.integers(DType::kI32, {rows}, -1, vocab - 1),
      m.scalar(m.stat(), m.real(0.5, 1))};
  for (int i = 0; i < 2; ++i)
    operands.push_back(m.scalar(DType::kF32, m.pick({0.0625, 0.125, 0.25})));
  for (size_t i = 1; transposed && i < 3; ++i)
    operands.push_back(m.builder().transpose(operands[i], {1, 0}));
  m.op(kind, operands);
}

void linear_cross_entropy(CaseMaker& m, OpKind kind) {
  const Dims nvd = {m.dim(), m.dim(), m.dim()};
  const int64_t rows = std::min(nvd[0], m.limits().max_elements / std::max(nvd[1], nvd[2]));
  const int64_t vocab = std::min(nvd[1], m.limits().max_elements / nvd[2]);
  // bf16 is the dtype of such a head's rows.
  if (kind == OpKind::kLinearCrossEntropyGrad && m.limits().dtype == DType::kBF16 && m.flag()) {
    const int64_t grain = m.limits().max_dim >= 16 && m.flag() ? 16 : 1;
    const auto whole = [&](int64_t n) { return std::max<int64_t>(n / grain, 1) * grain; };
    return f8_head(m, kind, whole(rows), whole(vocab), whole(nvd[2]));
  }
  const ValueId x = m.values({rows, nvd[2]});
  const ValueId w = m.values({vocab, nvd[2]});
  const ValueId targets = m.integers(DType::kI32, {rows}, -1, vocab - 1);
  if (kind == OpKind::kLinearCrossEntropy) {
    m.op(kind, {x, w, targets});
    return;
  }
  const ValueId acc = m.values(m.stat(), {vocab, nvd[2]}, Domain::kAny);
  m.op(kind, {acc, x, w, targets, m.scalar(m.stat(), m.real(0.5, 2))});
}

/// Each instruction reads the one before it, so that every one counts.
void fused_pointwise(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(0, 3);
  std::vector<ValueId> operands = {m.values(shape), m.values(shape),
                                   m.values(some_suffix(m, shape))};
  const auto num_operands = static_cast<int32_t>(operands.size());
  graph::PointwiseProgram program;
  for (int64_t n = m.integer(1, 5); n > 0; --n) {
    const auto last = static_cast<int32_t>(program.empty() ? 0 : num_operands + program.size() - 1);
    graph::PointwiseInstruction i;
    i.kind = m.pick({OpKind::kAdd, OpKind::kSub, OpKind::kMul, OpKind::kMaximum, OpKind::kSigmoid,
                     OpKind::kCos, OpKind::kScale, OpKind::kNeg});
    i.a = last;
    i.b = static_cast<int32_t>(m.integer(0, num_operands - 1));
    i.param = i.kind == OpKind::kScale ? m.real(-2, 2) : 0;
    program.push_back(i);
  }
  m.op(kind, operands, attrs({{"program", graph::print_pointwise_program(program)}}));
}

/// A rank's part of `rows` rows or columns over some ranks; the rank holds at least one.
struct ShardDraw {
  int64_t part = 0, whole = 0, index = 0;
};
ShardDraw draw_shard(CaseMaker& m) {
  ShardDraw s;
  s.part = m.dim();
  s.index = m.integer(0, 3);
  s.whole = (s.index * s.part) + m.integer(1, 2 * s.part);
  return s;
}
ValueId shard_index(CaseMaker& m, const ShardDraw& s) {
  return m.integers(DType::kI32, {}, s.index, s.index);
}
void gather_shard(CaseMaker& m, OpKind kind) {
  const ShardDraw s = draw_shard(m);
  const ValueId table = m.values({s.part, m.dim()});
  const ValueId ids = m.integers(DType::kI32, m.dims(0, 2), 0, s.whole - 1);
  m.op(kind, {table, ids, shard_index(m, s)}, attrs({{"rows", s.whole}}));
}
void scatter_add_shard(CaseMaker& m, OpKind kind) {
  const ShardDraw s = draw_shard(m);
  Dims shape = m.dims(1, 2);
  const ValueId ids = m.integers(DType::kI32, shape, 0, s.whole - 1);
  shape.push_back(m.integer(1, 4));
  const ValueId dy = m.values(shape);
  m.op(kind, {ids, dy, shard_index(m, s)}, attrs({{"rows", s.whole}, {"shard_rows", s.part}}));
}
void cross_entropy_max(CaseMaker& m, OpKind kind) {
  const ShardDraw s = draw_shard(m);
  const ValueId logits = m.values({m.dim(), s.part});
  m.op(kind, {logits, shard_index(m, s)}, attrs({{"vocab", s.whole}}));
}
void cross_entropy_shard(CaseMaker& m, OpKind kind) {
  const ShardDraw s = draw_shard(m);
  const int64_t rows = m.dim();
  const ValueId logits = m.values({rows, s.part});
  const ValueId targets = m.integers(DType::kI32, {rows}, -1, s.whole - 1);
  const ValueId largest = m.values(m.stat(), {rows}, Domain::kPositive);
  m.op(kind, {logits, targets, largest, shard_index(m, s)}, attrs({{"vocab", s.whole}}));
}
void cross_entropy_combine(CaseMaker& m, OpKind kind) {
  const Dims rows = {m.dim()};
  const ValueId targets = m.integers(DType::kI32, rows, -1, 5);
  const ValueId largest = m.values(m.stat(), rows, Domain::kAny);
  const ValueId sum = m.values(m.stat(), rows, Domain::kPositive);
  const ValueId logit = m.values(m.stat(), rows, Domain::kAny);
  m.op(kind, {targets, largest, sum, logit});
}
void cross_entropy_shard_grad(CaseMaker& m, OpKind kind) {
  const ShardDraw s = draw_shard(m);
  const int64_t rows = m.dim();
  const ValueId logits = m.values({rows, s.part});
  const ValueId targets = m.integers(DType::kI32, {rows}, -1, s.whole - 1);
  const ValueId lse = m.values(m.stat(), {rows}, Domain::kPositive);
  const ValueId dloss = m.scalar(m.stat(), m.real(0.1, 1));
  m.op(kind, {logits, targets, lse, dloss, shard_index(m, s)}, attrs({{"vocab", s.whole}}));
}
void quantize_f8(CaseMaker& m, OpKind kind) {
  const bool matrix = kind == OpKind::kQuantizeF8Both || m.flag();
  const ValueId x = m.values(matrix ? Dims{m.dim(), m.dim()} : m.dims(0, 3));
  std::vector<ValueId> operands = {x, m.scalar(DType::kF32, m.pick({0.0, 0.3, 1.75, 2.0, 300.0}))};
  if (kind != OpKind::kQuantizeF8)
    operands.push_back(m.scalar(DType::kF32, m.pick({0.0, 1.5, 1000.0})));
  const DType dtype = m.pick({DType::kF8E4M3, DType::kF8E5M2});
  Attrs attributes = attrs({{"dtype", dtype}});
  if (kind != OpKind::kQuantizeF8Both) attributes.set("transposed", matrix && m.flag());
  m.op(kind, operands, attributes);
}
void scaled_matmul(CaseMaker& m, OpKind kind) {
  const bool in_place = kind == OpKind::kScaledMatmulAccumulate;
  // Whole grains of the matrix unit, and what lies between.
  const int64_t grain = m.limits().max_dim >= 16 && m.flag() ? 16 : 1;
  const auto extent = [&] { return grain * m.integer(1, m.limits().max_dim / grain); };
  const Dims mnk = {extent(), extent(), extent()};
  const bool trans_a = m.flag();
  const bool trans_b = m.flag();
  const DType a_type = m.pick({DType::kF8E4M3, DType::kF8E5M2});
  const DType b_type =
      a_type == DType::kF8E5M2 ? DType::kF8E4M3 : m.pick({DType::kF8E4M3, DType::kF8E5M2});
  std::vector<ValueId> operands;
  if (in_place) operands.push_back(m.values(m.stat(), {mnk[0], mnk[1]}, Domain::kAny));
  operands.push_back(m.values(a_type, matrix({}, mnk[0], mnk[2], trans_a), Domain::kAny));
  operands.push_back(m.values(b_type, matrix({}, mnk[2], mnk[1], trans_b), Domain::kAny));
  for (int i = 0; i < 2; ++i)
    operands.push_back(m.scalar(DType::kF32, m.pick({0.25, 0.5, 1.0, 2.0})));
  if (!in_place && m.flag())
    operands.push_back(m.values(m.limits().dtype, {mnk[0], mnk[1]}, Domain::kAny));
  Attrs attributes = attrs({{"trans_a", trans_a}, {"trans_b", trans_b}});
  if (!in_place) attributes.set("dtype", m.limits().dtype);
  m.op(kind, operands, attributes);
}
void update_amax(CaseMaker& m, OpKind kind) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  m.op(kind, {m.scalar(DType::kF32, m.pick({0.0, 3.0})),
              m.scalar(DType::kF32, m.pick({0.0, 0.5, 7.0, kInf, kNaN}))});
}

void slice_shard(CaseMaker& m, OpKind kind) {
  const Dims shape = m.dims(1, 3);
  const int64_t axis = m.integer(0, static_cast<int64_t>(shape.size()) - 1);
  const int64_t members = m.integer(1, 4);
  const ValueId x = m.values(shape);
  const ValueId index = m.integers(DType::kI32, {}, 0, members - 1);
  m.op(kind, {x, index}, attrs({{"axis", axis}, {"members", members}}));
}

constexpr std::array<CaseRow, graph::kNumOpKinds> kCases = {{
    {OpKind::kAdd, binary_any},
    {OpKind::kSub, binary_any},
    {OpKind::kMul, binary_any},
    {OpKind::kDiv, binary_div},
    {OpKind::kMinimum, binary_choice},
    {OpKind::kMaximum, binary_choice},
    {OpKind::kPow, binary_pow},
    {OpKind::kNeg, unary_any},
    {OpKind::kExp, unary_any},
    {OpKind::kLog, unary_positive},
    {OpKind::kSqrt, unary_positive},
    {OpKind::kRsqrt, unary_positive},
    {OpKind::kSquare, unary_any},
    {OpKind::kCos, unary_any},
    {OpKind::kSin, unary_any},
    {OpKind::kSigmoid, unary_any},
    {OpKind::kSilu, unary_any},
    {OpKind::kScale, scale},
    {OpKind::kAddScalar, add_scalar},
    {OpKind::kCast, cast},
    {OpKind::kReshape, reshape},
    {OpKind::kTranspose, transpose},
    {OpKind::kSlice, slice},
    {OpKind::kPad, pad},
    {OpKind::kConcat, concat},
    {OpKind::kBroadcast, broadcast},
    {OpKind::kConstant, constant},
    {OpKind::kReduceSum, reduce_sum},
    {OpKind::kReduceMax, reduce_max},
    {OpKind::kSumSquares, sum_squares},
    {OpKind::kTreeSum, tree_sum},
    {OpKind::kMatmul, matmul},
    {OpKind::kSoftmax, last_dim},
    {OpKind::kSoftmaxGrad, softmax_grad},
    {OpKind::kSiluGrad, same_pair},
    {OpKind::kCausalMask, causal_mask},
    {OpKind::kRmsNorm, rms_norm},
    {OpKind::kRmsNormGrad, rms_norm_grad},
    {OpKind::kRopeTable, rope_table},
    {OpKind::kRotate, rotate},
    {OpKind::kGather, gather},
    {OpKind::kScatterAdd, scatter_add},
    {OpKind::kCrossEntropy, cross_entropy},
    {OpKind::kCrossEntropyGrad, cross_entropy_grad},
    {OpKind::kAccumulate, accumulate},
    {OpKind::kPhiloxUniform, philox_uniform},
    {OpKind::kMatmulAccumulate, matmul_accumulate},
    {OpKind::kFlashAttention, flash_attention},
    {OpKind::kFlashAttentionGrad, flash_attention_grad},
    {OpKind::kSwiglu, same_pair},
    {OpKind::kSwigluGrad, swiglu_grad},
    {OpKind::kAddRmsNorm, add_rms_norm},
    {OpKind::kAddRmsNormGrad, add_rms_norm_grad},
    {OpKind::kAdamw, adamw},
    {OpKind::kLinearCrossEntropy, linear_cross_entropy},
    {OpKind::kLinearCrossEntropyGrad, linear_cross_entropy},
    {OpKind::kFusedPointwise, fused_pointwise},
    {OpKind::kAllReduce, nullptr},  // no backend has ops that communicate
    {OpKind::kAllGather, nullptr},
    {OpKind::kReduceScatter, nullptr},
    {OpKind::kGatherShard, gather_shard},
    {OpKind::kScatterAddShard, scatter_add_shard},
    {OpKind::kCrossEntropyMax, cross_entropy_max},
    {OpKind::kCrossEntropyShard, cross_entropy_shard},
    {OpKind::kCrossEntropyCombine, cross_entropy_combine},
    {OpKind::kCrossEntropyShardGrad, cross_entropy_shard_grad},
    {OpKind::kSliceShard, slice_shard},
    {OpKind::kQuantizeF8, quantize_f8},
    {OpKind::kQuantizeF8Observed, quantize_f8},
    {OpKind::kQuantizeF8Both, quantize_f8},
    {OpKind::kScaledMatmul, scaled_matmul},
    {OpKind::kScaledMatmulAccumulate, scaled_matmul},
    {OpKind::kUpdateAmax, update_amax},
}};

constexpr bool communicates(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kAllGather || kind == OpKind::kReduceScatter;
}
constexpr bool in_order() {
  for (size_t i = 0; i < kCases.size(); ++i) {
    const CaseRow& row = kCases[i];
    if (static_cast<size_t>(row.kind) != i) return false;
    if ((row.make == nullptr) != communicates(row.kind)) return false;
  }
  return true;
}
static_assert(in_order(), "a case an op, in the order of OpKind");

}  // namespace

double CaseMaker::real(double low, double high) {
  return low + ((high - low) * static_cast<double>(draw_.integer(0, 999)) / 1000.0);
}

std::vector<int64_t> CaseMaker::dims(int64_t min_rank, int64_t max_rank) {
  Dims dims;
  int64_t left = limits_.max_elements;
  for (int64_t n = draw_.integer(min_rank, max_rank); n > 0; --n) {
    dims.push_back(draw_.integer(1, std::clamp<int64_t>(left, 1, limits_.max_dim)));
    left /= dims.back();
  }
  return dims;
}

ValueId CaseMaker::add_input(TensorType type, std::vector<double> numbers) {
  case_.inputs.push_back(std::move(numbers));
  return builder_.input(std::move(type), graph::Role::kActivation,
                        numbered("x", case_.inputs.size()));
}

ValueId CaseMaker::values(std::vector<int64_t> shape, Domain domain) {
  return values(limits_.dtype, std::move(shape), domain);
}

ValueId CaseMaker::values(DType dtype, std::vector<int64_t> shape, Domain domain) {
  // One draw a tensor, not one a number: shrinking then works on shapes.
  const PhiloxStream stream{static_cast<uint64_t>(draw_.integer(0, 1 << 20)), case_.inputs.size()};
  TensorType type{dtype, Shape(std::move(shape))};
  const auto n = static_cast<size_t>(type.num_elements());
  std::vector<double> numbers(n);
  for (size_t i = 0; i < n; ++i) {
    const double u = stream.uniform(i);
    const auto step = static_cast<double>(stream.below(i, 128));
    const bool negative = stream.bits64(i + n) % 2 == 0;
    switch (domain) {
      case Domain::kAny:
        numbers[i] = (4 * u) - 2;
        break;
      case Domain::kPositive:
        numbers[i] = (2 * u) + 0.3;
        break;
      case Domain::kNonZero:
        numbers[i] = ((2 * u) + 0.3) * (negative ? -1 : 1);
        break;
      case Domain::kEven:
        numbers[i] = (2 * step / 64) - 2;
        break;
      case Domain::kOdd:
        numbers[i] = ((2 * step + 1) / 64) - 2;
        break;
      case Domain::kDistinct:
        numbers[i] = (4 * static_cast<double>(i) / static_cast<double>(n)) - 2;
        break;
    }
    numbers[i] = nearest(dtype, numbers[i]);
  }
  if (domain == Domain::kDistinct) {
    for (size_t i = 1; i < n; ++i) std::swap(numbers[i], numbers[stream.below(i, i + 1)]);
  }
  return add_input(std::move(type), std::move(numbers));
}

ValueId CaseMaker::integers(DType dtype, std::vector<int64_t> shape, int64_t low, int64_t high) {
  const PhiloxStream stream{static_cast<uint64_t>(draw_.integer(0, 1 << 20)), case_.inputs.size()};
  TensorType type{dtype, Shape(std::move(shape))};
  std::vector<double> numbers(static_cast<size_t>(type.num_elements()));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<double>(
        low + static_cast<int64_t>(stream.below(i, static_cast<uint64_t>(high - low + 1))));
  return add_input(std::move(type), std::move(numbers));
}

ValueId CaseMaker::scalar(DType dtype, double value) {
  return add_input({dtype, Shape{}}, {nearest(dtype, value)});
}

void CaseMaker::op(OpKind kind, std::vector<ValueId> operands, Attrs attributes) {
  const std::vector<ValueId> results =
      builder_.op(kind, std::move(operands), std::move(attributes));
  for (size_t i = 0; i < results.size(); ++i)
    builder_.output(results[i], graph::Role::kActivation, numbered("y", i));
}

OpCase CaseMaker::take() {
  case_.status = builder_.status();
  if (!case_.graph.ops().empty()) case_.op = static_cast<graph::OpId>(case_.graph.ops().size() - 1);
  return std::move(case_);
}

std::span<const CaseRow> case_table() { return kCases; }

OpCase make_case(OpKind kind, const CaseLimits& limits, Draw& draw) {
  CaseMaker maker(limits, draw);
  kCases[static_cast<size_t>(kind)].make(maker, kind);
  return maker.take();
}

std::string numbered(std::string_view prefix, size_t i) {
  std::string name(prefix);
  name.append(std::to_string(i));
  return name;
}

Attrs attrs(std::initializer_list<std::pair<std::string_view, graph::Attr>> entries) {
  Attrs out;
  for (const auto& [name, value] : entries) out.set(name, value);
  return out;
}

}  // namespace sgactor::testing
