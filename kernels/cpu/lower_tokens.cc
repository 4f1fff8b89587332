// Ops at the two ends of a language model: embedding rows and the loss over the vocabulary.
#include "kernels/cpu/lowering.h"

#include <fmt/format.h>

#include <cstring>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpId;
using graph::OpKind;
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

/// Destinations are cut into this many ranges; each range scans all positions in order.
constexpr int64_t kScatterParts = 16;

struct ScatterPlan {
  ValueId y, ids, dy, acc;
  bool accumulate = false;
  int64_t n = 0;      ///< positions
  int64_t rows = 0;   ///< of the table
  int64_t width = 0;  ///< of a row
};

/// Adds rows of dy to y in order of position, y[begin, end) zeroed first.
void scatter_plain(const KernelTable& k, const ScatterPlan& p, float* y, const int32_t* ids,
                   const float* dy, int64_t begin, int64_t end) {
  std::memset(y + begin * p.width, 0, static_cast<size_t>((end - begin) * p.width) * sizeof(float));
  for (int64_t i = 0; i < p.n; ++i) {
    if (ids[i] < begin || ids[i] >= end) continue;
    float* row = y + ids[i] * p.width;
    k.binary[kAdd](row, row, dy + i * p.width, p.width);
  }
}

/// y[id] += (sum of the rows of dy with this id, in order): the bits of scatter_add followed by
/// accumulate, without the table between them. `keys` holds n entries, `sum` one row.
void scatter_accumulate(const KernelTable& k, const ScatterPlan& p, float* y, const int32_t* ids,
                        const float* dy, int64_t begin, int64_t end, uint64_t* keys, float* sum) {
  int64_t count = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    if (ids[i] < begin || ids[i] >= end) continue;
    keys[count++] = (static_cast<uint64_t>(ids[i]) << 32) | static_cast<uint64_t>(i);
  }
  std::sort(keys, keys + count);
  for (int64_t at = 0; at < count;) {
    const uint64_t id = keys[at] >> 32;
    std::memcpy(sum, dy + static_cast<int64_t>(keys[at] & 0xffffffffU) * p.width,
                static_cast<size_t>(p.width) * sizeof(float));
    for (++at; at < count && keys[at] >> 32 == id; ++at) {
      k.binary[kAdd](sum, sum, dy + static_cast<int64_t>(keys[at] & 0xffffffffU) * p.width,
                     p.width);
    }
    float* row = y + static_cast<int64_t>(id) * p.width;
    k.binary[kAdd](row, row, sum, p.width);
  }
}

/// The accumulate op that is all that becomes of `v`, if it adds to nothing yet, or into an input
/// nobody else reads.
OpId accumulation_of(const Lowering& low, ValueId v) {
  const OpId user = low.only_user(v);
  if (user == graph::kNoOp) return user;
  const Op& op = low.body().op(user);
  if (op.kind != OpKind::kAccumulate || op.operands[1] != v || op.operands[0] == v ||
      low.type(op.operands[0]).dtype != DType::kF32) {
    return graph::kNoOp;
  }
  const ValueId acc = op.operands[0];
  if (low.starts_sum(acc)) return user;
  const bool untouched =
      low.body().value(acc).producer == graph::kNoOp && low.only_user(acc) == user;
  return untouched ? user : graph::kNoOp;
}

}  // namespace

Status lower_gather(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId table = op.operands[0];
  const ValueId ids = op.operands[1];
  const int64_t V = low.type(table).shape.dim(0);
  const int64_t row = low.type(table).shape.dim(1) * dtype_bytes(low.type(table).dtype);
  const int64_t n = low.type(ids).num_elements();
  if (low.type(ids).dtype != DType::kI32) return low.no_kernel(op);
  low.add([=](const Frame& f) -> Status {
    const auto* id = f.ptr<int32_t>(ids);
    SGA_TRY(check_ids(id, n, V, false, "token"));
    for_blocks(f, n, std::max<int64_t>(1, 64 * kKiB / std::max<int64_t>(row, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   std::memcpy(f.ptr<std::byte>(y) + i * row, f.ptr<std::byte>(table) + id[i] * row,
                               static_cast<size_t>(row));
                 }
               });
    return {};
  });
  return {};
}

Status lower_scatter_add(Lowering& low, const Op& op) {
  ScatterPlan p;
  p.y = op.results[0];
  p.ids = op.operands[0];
  p.dy = op.operands[1];
  p.n = low.type(p.ids).num_elements();
  p.rows = low.type(p.y).shape.dim(0);
  p.width = low.type(p.y).shape.dim(1);
  if (low.type(p.dy).dtype != DType::kF32 || low.type(p.ids).dtype != DType::kI32) {
    return low.no_kernel(op);
  }
  if (const OpId user = accumulation_of(low, p.y); user != graph::kNoOp) {
    p.acc = low.body().op(user).operands[0];
    p.accumulate = !low.starts_sum(p.acc);
    p.y = low.body().op(user).results[0];
    low.skip(user);
  }
  const int64_t keys_bytes = p.n * static_cast<int64_t>(sizeof(uint64_t));
  const int64_t part_scratch =
      round_up(keys_bytes, 64) + round_up(p.width * static_cast<int64_t>(sizeof(float)), 64);
  if (p.accumulate) low.need_scratch(part_scratch * low.num_threads());
  const int64_t part = std::max<int64_t>(1, ceil_div(p.rows, kScatterParts));
  low.add([=, k = &low.kernels()](const Frame& f) -> Status {
    const auto* ids = f.ptr<int32_t>(p.ids);
    SGA_TRY(check_ids(ids, p.n, p.rows, false, "token"));
    float* y = f.ptr<float>(p.y);
    const auto* dy = f.ptr<float>(p.dy);
    if (p.accumulate && f.ptr<float>(p.acc) != y) {
      std::memcpy(y, f.ptr<float>(p.acc), static_cast<size_t>(p.rows * p.width) * sizeof(float));
    }
    f.pool->parallel_for(ceil_div(p.rows, part), [&](int64_t block, int32_t thread) {
      const int64_t begin = block * part;
      const int64_t end = std::min(p.rows, begin + part);
      if (!p.accumulate) {
        scatter_plain(*k, p, y, ids, dy, begin, end);
        return;
      }
      std::byte* scratch = f.scratch + thread * part_scratch;
      scatter_accumulate(*k, p, y, ids, dy, begin, end, reinterpret_cast<uint64_t*>(scratch),
                         reinterpret_cast<float*>(scratch + round_up(keys_bytes, 64)));
    });
    return {};
  });
  return {};
}

Status lower_cross_entropy(Lowering& low, const Op& op) {
  const ValueId logits = op.operands[0];
  const ValueId targets = op.operands[1];
  const ValueId loss = op.results[0];
  const ValueId lse = op.results[1];
  if (low.type(logits).dtype != DType::kF32 || low.type(targets).dtype != DType::kI32) {
    return low.no_kernel(op);
  }
  const int64_t N = low.type(logits).shape.dim(0);
  const int64_t V = low.type(logits).shape.dim(1);
  low.add([=, fn = low.kernels().log_sum_exp](const Frame& f) -> Status {
    const auto* x = f.ptr<float>(logits);
    const auto* target = f.ptr<int32_t>(targets);
    auto* row_lse = f.ptr<float>(lse);
    SGA_TRY(check_ids(target, N, V, true, "target"));
    for_blocks(f, N, rows_per_block(V), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) row_lse[r] = fn(x + r * V, V);
    });
    double total = 0;
    for (int64_t r = 0; r < N; ++r) {
      if (target[r] >= 0) total += static_cast<double>(row_lse[r]) - x[r * V + target[r]];
    }
    *f.ptr<float>(loss) = static_cast<float>(total);
    return {};
  });
  return {};
}

Status lower_cross_entropy_grad(Lowering& low, const Op& op) {
  const ValueId logits = op.operands[0];
  const ValueId targets = op.operands[1];
  const ValueId lse = op.operands[2];
  const ValueId dloss = op.operands[3];
  const ValueId dlogits = op.results[0];
  if (low.type(logits).dtype != DType::kF32 || low.type(dloss).dtype != DType::kF32) {
    return low.no_kernel(op);
  }
  const int64_t N = low.type(logits).shape.dim(0);
  const int64_t V = low.type(logits).shape.dim(1);
  low.add([=, fn = low.kernels().exp_shifted](const Frame& f) -> Status {
    const auto* target = f.ptr<int32_t>(targets);
    SGA_TRY(check_ids(target, N, V, true, "target"));
    const float scale = *f.ptr<float>(dloss);
    for_blocks(f, N, rows_per_block(V), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* row = f.ptr<float>(dlogits) + r * V;
        if (target[r] < 0) {
          std::memset(row, 0, static_cast<size_t>(V) * sizeof(float));
          continue;
        }
        fn(row, f.ptr<float>(logits) + r * V, V, f.ptr<float>(lse)[r], scale);
        row[target[r]] -= scale;
      }
    });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
