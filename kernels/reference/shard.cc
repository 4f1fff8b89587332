// One rank's part of ops over a dim that is cut. Letters: N rows, V vocabulary, v the part of it on
// this rank, D model dim.
#include "graph/base/units.h"
#include "kernels/reference/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace sgactor::kernels::reference {
namespace {

Status check_ids(const Tensor& ids, int64_t limit, bool negative_is_ignored, const char* what) {
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids.i64()[i];
    if (id < limit && (id >= 0 || negative_is_ignored)) continue;
    return invalid_argument(std::string(what) + " " + std::to_string(id) + " at position " +
                            std::to_string(i) + " is outside [0, " + std::to_string(limit) + ")");
  }
  return {};
}

Status check_index(const Tensor& index) {
  if (index.i64()[0] >= 0 && index.i64()[0] <= INT32_MAX) return {};
  return invalid_argument("rank index " + std::to_string(index.i64()[0]) + " is negative");
}

/// Columns of logits[N, v] that stand for words: the last ranks' may be padding.
int64_t num_columns(const OpCall& call, const Tensor& index) {
  const int64_t width = call.in[0].shape().dim(1);
  return std::clamp<int64_t>(call.op.attrs.i64("vocab") - (index.i64()[0] * width), 0, width);
}

}  // namespace

Status gather_shard(const OpCall& call) {
  const Tensor& table = call.in[0];
  const Tensor& ids = call.in[1];
  SGA_TRY(check_ids(ids, call.op.attrs.i64("rows"), false, "id"));
  SGA_TRY(check_index(call.in[2]));
  const int64_t n_rows = table.shape().dim(0);
  const int64_t n_dims = table.shape().dim(1);
  const int64_t first = call.in[2].i64()[0] * n_rows;
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t row = ids.i64()[i] - first;
    double* y_D = call.out[0].f64() + (i * n_dims);
    if (row < 0 || row >= n_rows) {
      std::fill_n(y_D, n_dims, 0.0);
    } else {
      std::copy_n(table.f64() + (row * n_dims), n_dims, y_D);
    }
  }
  return {};
}

Status scatter_add_shard(const OpCall& call) {
  const Tensor& ids = call.in[0];
  const Tensor& y = call.out[0];
  SGA_TRY(check_ids(ids, call.op.attrs.i64("rows"), false, "id"));
  SGA_TRY(check_index(call.in[2]));
  const int64_t n_rows = y.shape().dim(0);
  const int64_t n_dims = y.shape().dim(1);
  const int64_t first = call.in[2].i64()[0] * n_rows;
  std::fill_n(y.f64(), y.size(), 0.0);
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t row = ids.i64()[i] - first;
    if (row < 0 || row >= n_rows) continue;
    for (int64_t d = 0; d < n_dims; ++d)
      y.f64()[(row * n_dims) + d] += call.in[1].f64()[(i * n_dims) + d];
  }
  return {};
}

Status cross_entropy_max(const OpCall& call) {
  SGA_TRY(check_index(call.in[1]));
  const int64_t columns = num_columns(call, call.in[1]);
  const int64_t width = call.in[0].shape().dim(1);
  for (int64_t n = 0; n < call.out[0].size(); ++n) {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t v = 0; v < columns; ++v)
      largest = std::max(largest, call.in[0].f64()[(n * width) + v]);
    call.out[0].f64()[n] = largest;
  }
  return {};
}

Status cross_entropy_shard(const OpCall& call) {
  const Tensor& targets = call.in[1];
  SGA_TRY(check_ids(targets, call.op.attrs.i64("vocab"), true, "target"));
  SGA_TRY(check_index(call.in[3]));
  const int64_t columns = num_columns(call, call.in[3]);
  const int64_t width = call.in[0].shape().dim(1);
  const int64_t first = call.in[3].i64()[0] * width;
  for (int64_t n = 0; n < targets.size(); ++n) {
    const double* logits_v = call.in[0].f64() + (n * width);
    double sum = 0;
    for (int64_t v = 0; v < columns; ++v) sum += std::exp(logits_v[v] - call.in[2].f64()[n]);
    call.out[0].f64()[n] = sum;
    const int64_t target = targets.i64()[n] - first;
    const bool here = targets.i64()[n] >= 0 && target >= 0 && target < columns;
    call.out[1].f64()[n] = here ? logits_v[target] : 0.0;
  }
  return {};
}

Status cross_entropy_combine(const OpCall& call) {
  double loss_sum = 0;
  for (int64_t n = 0; n < call.in[0].size(); ++n) {
    const double lse = call.in[1].f64()[n] + std::log(call.in[2].f64()[n]);
    call.out[1].f64()[n] = lse;
    if (call.in[0].i64()[n] >= 0) loss_sum += lse - call.in[3].f64()[n];
  }
  call.out[0].f64()[0] = loss_sum;
  return {};
}

Status cross_entropy_shard_grad(const OpCall& call) {
  const Tensor& targets = call.in[1];
  SGA_TRY(check_ids(targets, call.op.attrs.i64("vocab"), true, "target"));
  SGA_TRY(check_index(call.in[4]));
  const int64_t columns = num_columns(call, call.in[4]);
  const int64_t width = call.in[0].shape().dim(1);
  const int64_t first = call.in[4].i64()[0] * width;
  const double dloss = call.in[3].f64()[0];
  for (int64_t n = 0; n < targets.size(); ++n) {
    const int64_t target = targets.i64()[n];
    for (int64_t v = 0; v < width; ++v) {
      const int64_t i = (n * width) + v;
      const double p = std::exp(call.in[0].f64()[i] - call.in[2].f64()[n]);
      const bool counts = target >= 0 && v < columns;
      call.out[0].f64()[i] = counts ? (p - (v == target - first ? 1.0 : 0.0)) * dloss : 0.0;
    }
  }
  return {};
}

Status slice_shard(const OpCall& call) {
  SGA_TRY(check_index(call.in[1]));
  const Tensor& x = call.in[0];
  const Tensor& y = call.out[0];
  const int axis = static_cast<int>(call.op.attrs.i64("axis"));
  const int64_t extent = x.shape().dim(axis);
  const int64_t piece = y.shape().dim(axis);
  const int64_t first = call.in[1].i64()[0] * piece;
  int64_t inner = 1;
  for (int d = axis + 1; d < x.shape().rank(); ++d) inner *= x.shape().dim(d);
  std::fill_n(y.i64(), y.size(), 0);
  const int64_t outer = y.size() == 0 ? 0 : y.size() / (piece * inner);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t p = 0; p < std::min(piece, extent - first); ++p) {
      std::copy_n(x.i64() + (((o * extent) + first + p) * inner), inner,
                  y.i64() + (((o * piece) + p) * inner));
    }
  }
  return {};
}

}  // namespace sgactor::kernels::reference
