// One rank's part of ops over a dim that is cut. Letters: N rows, v columns of this rank.
#include "kernels/cpu/lowering.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::ValueId;

Status check_ids(const int32_t* ids, int64_t n, int64_t rows, bool negative_ok, const char* what) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= rows || (ids[i] < 0 && !negative_ok)) {
      return invalid_argument(fmt::format("{} {} at position {} is outside the vocabulary of {}",
                                          what, ids[i], i, rows));
    }
  }
  return {};
}

Result<int64_t> read_index(const Frame& f, ValueId index) {
  const int32_t value = *f.ptr<int32_t>(index);
  if (value < 0) return invalid_argument(fmt::format("rank index {} is negative", value));
  return int64_t{value};
}

/// The operands that the ops over a part of the vocabulary share, and its extents.
struct Vocabulary {
  ValueId logits = graph::kNoValue;
  ValueId targets = graph::kNoValue;
  ValueId index = graph::kNoValue;
  int64_t N = 0, v = 0, vocab = 0;

  Vocabulary(const Lowering& low, const Op& op)
      : logits(op.operands[0]),
        targets(op.operands[1]),
        index(op.operands.back()),
        N(low.type(op.operands[0]).shape.dim(0)),
        v(low.type(op.operands[0]).shape.dim(1)),
        vocab(op.attrs.i64("vocab")) {}
  /// Columns that stand for words; the last ranks' may be padding.
  [[nodiscard]] int64_t columns(int64_t rank) const {
    return std::clamp<int64_t>(vocab - rank * v, 0, v);
  }
};

/// Everything is f32, or i32 where ids are.
bool has_kernel(const Lowering& low, const Op& op) {
  const auto fits = [&](ValueId x) {
    return low.type(x).dtype == DType::kF32 || low.type(x).dtype == DType::kI32;
  };
  return std::all_of(op.operands.begin(), op.operands.end(), fits) &&
         std::all_of(op.results.begin(), op.results.end(), fits);
}

}  // namespace

Status lower_gather_shard(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId table = op.operands[0];
  const ValueId ids = op.operands[1];
  const ValueId index = op.operands[2];
  const int64_t rows = low.type(table).shape.dim(0);
  const int64_t row = low.type(table).shape.dim(1) * dtype_bytes(low.type(table).dtype);
  const int64_t n = low.type(ids).num_elements();
  low.add([=, vocab = op.attrs.i64("rows")](const Frame& f) -> Status {
    const auto* id = f.ptr<int32_t>(ids);
    SGA_TRY(check_ids(id, n, vocab, false, "token"));
    SGA_ASSIGN(const int64_t rank, read_index(f, index));
    for_blocks(f, n, std::max<int64_t>(1, 64 * kKiB / std::max<int64_t>(row, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t at = id[i] - rank * rows;
                   std::byte* to = f.ptr<std::byte>(y) + i * row;
                   if (at < 0 || at >= rows) {
                     std::memset(to, 0, static_cast<size_t>(row));
                   } else {
                     std::memcpy(to, f.ptr<std::byte>(table) + at * row, static_cast<size_t>(row));
                   }
                 }
               });
    return {};
  });
  return {};
}

Status lower_scatter_add_shard(Lowering& low, const Op& op) {
  if (!has_kernel(low, op)) return low.no_kernel(op);
  const ValueId y = op.results[0];
  const ValueId ids = op.operands[0];
  const ValueId dy = op.operands[1];
  const ValueId index = op.operands[2];
  const int64_t n = low.type(ids).num_elements();
  const int64_t rows = low.type(y).shape.dim(0);
  const int64_t width = low.type(y).shape.dim(1);
  // Ranges of rows; each scans all positions in order, so that sums do not depend on threads.
  const int64_t part = std::max<int64_t>(1, ceil_div(rows, 16));
  low.add([=, vocab = op.attrs.i64("rows"), k = &low.kernels()](const Frame& f) -> Status {
    const auto* id = f.ptr<int32_t>(ids);
    SGA_TRY(check_ids(id, n, vocab, false, "token"));
    SGA_ASSIGN(const int64_t rank, read_index(f, index));
    for_blocks(f, rows, part, [&](int64_t begin, int64_t end) {
      auto* to = f.ptr<float>(y);
      std::memset(to + begin * width, 0,
                  static_cast<size_t>((end - begin) * width) * sizeof(float));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = id[i] - rank * rows;
        if (at < begin || at >= end) continue;
        k->binary[kAdd](to + at * width, to + at * width, f.ptr<float>(dy) + i * width, width);
      }
    });
    return {};
  });
  return {};
}

Status lower_cross_entropy_max(Lowering& low, const Op& op) {
  if (!has_kernel(low, op)) return low.no_kernel(op);
  const Vocabulary p(low, op);
  const ValueId y = op.results[0];
  low.add([=, fn = low.kernels().max](const Frame& f) -> Status {
    SGA_ASSIGN(const int64_t rank, read_index(f, p.index));
    const int64_t columns = p.columns(rank);
    for_blocks(f, p.N, rows_per_block(p.v), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        f.ptr<float>(y)[r] = fn(f.ptr<float>(p.logits) + r * p.v, columns);
    });
    return {};
  });
  return {};
}

Status lower_cross_entropy_shard(Lowering& low, const Op& op) {
  if (!has_kernel(low, op)) return low.no_kernel(op);
  const Vocabulary p(low, op);
  const ValueId shift = op.operands[2];
  const ValueId sum = op.results[0];
  const ValueId logit = op.results[1];
  const int64_t row_scratch = round_up(p.v * static_cast<int64_t>(sizeof(float)), 64);
  low.need_scratch(row_scratch * low.num_threads());
  low.add([=, k = &low.kernels()](const Frame& f) -> Status {
    const auto* target = f.ptr<int32_t>(p.targets);
    SGA_TRY(check_ids(target, p.N, p.vocab, true, "target"));
    SGA_ASSIGN(const int64_t rank, read_index(f, p.index));
    const int64_t columns = p.columns(rank);
    const int64_t block = rows_per_block(p.v);
    f.pool->parallel_for(ceil_div(p.N, block), [&](int64_t b, int32_t thread) {
      auto* powers = reinterpret_cast<float*>(f.scratch + thread * row_scratch);
      for (int64_t r = b * block; r < std::min(p.N, (b + 1) * block); ++r) {
        const float* x = f.ptr<float>(p.logits) + r * p.v;
        k->exp_shifted(powers, x, columns, f.ptr<float>(shift)[r], 1.0F);
        f.ptr<float>(sum)[r] = k->sum(powers, columns);
        const int64_t at = target[r] - rank * p.v;
        const bool here = target[r] >= 0 && at >= 0 && at < columns;
        f.ptr<float>(logit)[r] = here ? x[at] : 0.0F;
      }
    });
    return {};
  });
  return {};
}

Status lower_cross_entropy_combine(Lowering& low, const Op& op) {
  if (!has_kernel(low, op)) return low.no_kernel(op);
  const std::vector<ValueId> in = op.operands;
  const ValueId loss = op.results[0];
  const ValueId lse = op.results[1];
  const int64_t n = low.type(in[0]).num_elements();
  low.add([=](const Frame& f) -> Status {
    double total = 0;
    for (int64_t r = 0; r < n; ++r) {
      const float row = f.ptr<float>(in[1])[r] + std::log(f.ptr<float>(in[2])[r]);
      f.ptr<float>(lse)[r] = row;
      if (f.ptr<int32_t>(in[0])[r] >= 0) {
        total += static_cast<double>(row) - f.ptr<float>(in[3])[r];
      }
    }
    *f.ptr<float>(loss) = static_cast<float>(total);
    return {};
  });
  return {};
}

Status lower_cross_entropy_shard_grad(Lowering& low, const Op& op) {
  if (!has_kernel(low, op)) return low.no_kernel(op);
  const Vocabulary p(low, op);
  const ValueId lse = op.operands[2];
  const ValueId dloss = op.operands[3];
  const ValueId dlogits = op.results[0];
  low.add([=, fn = low.kernels().exp_shifted](const Frame& f) -> Status {
    const auto* target = f.ptr<int32_t>(p.targets);
    SGA_TRY(check_ids(target, p.N, p.vocab, true, "target"));
    SGA_ASSIGN(const int64_t rank, read_index(f, p.index));
    const int64_t columns = p.columns(rank);
    const float scale = *f.ptr<float>(dloss);
    for_blocks(f, p.N, rows_per_block(p.v), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* row = f.ptr<float>(dlogits) + r * p.v;
        const int64_t counted = target[r] < 0 ? 0 : columns;
        std::memset(row + counted, 0, static_cast<size_t>(p.v - counted) * sizeof(float));
        if (counted == 0) continue;
        fn(row, f.ptr<float>(p.logits) + r * p.v, counted, f.ptr<float>(lse)[r], scale);
        const int64_t at = target[r] - rank * p.v;
        if (at >= 0 && at < counted) row[at] -= scale;
      }
    });
    return {};
  });
  return {};
}

Status lower_slice_shard(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId index = op.operands[1];
  const ValueId y = op.results[0];
  const Shape& shape = low.type(x).shape;
  const int axis = static_cast<int>(op.attrs.i64("axis"));
  const int64_t extent = shape.dim(axis);
  const int64_t piece = low.type(y).shape.dim(axis);
  int64_t outer = 1;
  int64_t inner = dtype_bytes(low.type(x).dtype);
  for (int d = 0; d < axis; ++d) outer *= shape.dim(d);
  for (int d = axis + 1; d < shape.rank(); ++d) inner *= shape.dim(d);
  low.add([=](const Frame& f) -> Status {
    SGA_ASSIGN(const int64_t rank, read_index(f, index));
    const int64_t first = rank * piece;
    const int64_t held = std::clamp<int64_t>(extent - first, 0, piece);
    for_blocks(f, outer, std::max<int64_t>(1, 64 * kKiB / std::max<int64_t>(piece * inner, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t o = begin; o < end; ++o) {
                   std::byte* to = f.ptr<std::byte>(y) + o * piece * inner;
                   if (held > 0) {
                     std::memcpy(to, f.ptr<std::byte>(x) + (o * extent + first) * inner,
                                 static_cast<size_t>(held * inner));
                   }
                   std::memset(to + held * inner, 0, static_cast<size_t>((piece - held) * inner));
                 }
               });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
