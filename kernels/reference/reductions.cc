#include "kernels/reference/kernels.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace sgactor::kernels::reference {
namespace {

/// Folds the dims in `axes` away; elements of one result are met in row-major order of the operand.
template <class F>
Status reduce(const OpCall& call, double start, F fold) {
  const Shape& shape = call.in[0].shape();
  const std::vector<int64_t>& axes = call.op.attrs.list("axes");
  // Stride in the result of each operand dim; 0 where the dim is folded.
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 0);
  int64_t next = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (std::find(axes.begin(), axes.end(), d) != axes.end()) continue;
    strides[static_cast<size_t>(d)] = next;
    next *= shape.dim(d);
  }
  double* y = call.out[0].f64();
  std::fill_n(y, call.out[0].size(), start);
  for (int64_t i = 0; i < call.in[0].size(); ++i) {
    int64_t rest = i;
    int64_t to = 0;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      to += rest % shape.dim(d) * strides[static_cast<size_t>(d)];
      rest /= shape.dim(d);
    }
    y[to] = fold(y[to], call.in[0].f64()[i]);
  }
  return {};
}

}  // namespace

Status reduce_sum(const OpCall& call) {
  return reduce(call, 0.0, [](double sum, double x) { return sum + x; });
}

Status reduce_max(const OpCall& call) {
  return reduce(call, -std::numeric_limits<double>::infinity(),
                [](double best, double x) { return x > best ? x : best; });
}

Status sum_squares(const OpCall& call) {
  const int64_t chunk = call.op.attrs.i64("chunk");
  const double* x = call.in[0].f64();
  double* y = call.out[0].f64();
  std::fill_n(y, call.out[0].size(), 0.0);
  for (int64_t i = 0; i < call.in[0].size(); ++i) y[i / chunk] += x[i] * x[i];
  return {};
}

Status tree_sum(const OpCall& call) {
  std::vector<double> level(call.in[0].f64(), call.in[0].f64() + call.in[0].size());
  while (level.size() > 1) {
    std::vector<double> above;
    for (size_t i = 0; i + 1 < level.size(); i += 2) above.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  call.out[0].f64()[0] = level.empty() ? 0.0 : level[0];
  return {};
}

}  // namespace sgactor::kernels::reference
