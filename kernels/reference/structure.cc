// Ops that move cells or make them. Cells are copied as 64-bit words whatever their dtype.
#include "graph/base/philox.h"
#include "kernels/reference/kernels.h"
#include "kernels/reference/rounding.h"

#include <cstring>
#include <vector>

namespace sgactor::kernels::reference {
namespace {

/// Elements between neighbours along each dim.
std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 1);
  for (int d = shape.rank() - 2; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    strides[i] = strides[i + 1] * shape.dim(d + 1);
  }
  return strides;
}

/// Visits the elements of `shape` in row-major order and hands `visit` the sum of index times
/// stride over all dims.
template <class F>
void for_each_offset(const Shape& shape, const std::vector<int64_t>& strides, F visit) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()), 0);
  int64_t offset = 0;
  for (int64_t n = shape.num_elements(); n > 0; --n) {
    visit(offset);
    for (int d = shape.rank() - 1; d >= 0; --d) {
      const auto i = static_cast<size_t>(d);
      offset += strides[i];
      if (++index[i] < shape.dim(d)) break;
      offset -= strides[i] * shape.dim(d);
      index[i] = 0;
    }
  }
}

/// A tensor seen as [outer, extent of axis, inner].
struct AxisView {
  int64_t outer = 1;
  int64_t extent = 1;
  int64_t inner = 1;
};
AxisView axis_view(const Shape& shape, int64_t axis) {
  AxisView v;
  for (int d = 0; d < shape.rank(); ++d) {
    if (d < axis) v.outer *= shape.dim(d);
    if (d == axis) v.extent = shape.dim(d);
    if (d > axis) v.inner *= shape.dim(d);
  }
  return v;
}

/// Copies `count` steps of the axis, from step `from_start` of `from` to step `to_start` of `to`.
void copy_along_axis(const Tensor& from, int64_t from_start, const Tensor& to, int64_t to_start,
                     int64_t count, int64_t axis) {
  const AxisView f = axis_view(from.shape(), axis);
  const AxisView t = axis_view(to.shape(), axis);
  for (int64_t o = 0; o < f.outer; ++o) {
    for (int64_t i = 0; i < count * f.inner; ++i) {
      to.i64()[(((o * t.extent) + to_start) * t.inner) + i] =
          from.i64()[(((o * f.extent) + from_start) * f.inner) + i];
    }
  }
}

}  // namespace

Status reshape(const OpCall& call) {
  if (call.out[0].data != call.in[0].data && call.in[0].bytes() > 0)
    std::memcpy(call.out[0].data, call.in[0].data, static_cast<size_t>(call.in[0].bytes()));
  return {};
}

Status transpose(const OpCall& call) {
  const std::vector<int64_t>& perm = call.op.attrs.list("perm");
  const std::vector<int64_t> from = strides_of(call.in[0].shape());
  std::vector<int64_t> strides;
  for (int64_t p : perm) strides.push_back(from[static_cast<size_t>(p)]);
  const int64_t* x = call.in[0].i64();
  int64_t* y = call.out[0].i64();
  for_each_offset(call.out[0].shape(), strides, [&](int64_t offset) { *y++ = x[offset]; });
  return {};
}

Status slice(const OpCall& call) {
  const graph::Attrs& a = call.op.attrs;
  copy_along_axis(call.in[0], a.i64("start"), call.out[0], 0, a.i64("size"), a.i64("axis"));
  return {};
}

Status pad(const OpCall& call) {
  const int64_t axis = call.op.attrs.i64("axis");
  // All-zero bits are 0 in both kinds of cell.
  for (int64_t i = 0; i < call.out[0].size(); ++i) call.out[0].i64()[i] = 0;
  copy_along_axis(call.in[0], 0, call.out[0], call.op.attrs.i64("before"),
                  call.in[0].shape().dim(static_cast<int>(axis)), axis);
  return {};
}

Status concat(const OpCall& call) {
  const int64_t axis = call.op.attrs.i64("axis");
  int64_t start = 0;
  for (const Tensor& x : call.in) {
    const int64_t extent = x.shape().dim(static_cast<int>(axis));
    copy_along_axis(x, 0, call.out[0], start, extent, axis);
    start += extent;
  }
  return {};
}

Status broadcast(const OpCall& call) {
  const std::vector<int64_t>& axes = call.op.attrs.list("axes");
  const std::vector<int64_t> from = strides_of(call.in[0].shape());
  std::vector<int64_t> strides(static_cast<size_t>(call.out[0].shape().rank()), -1);
  for (int64_t axis : axes) strides[static_cast<size_t>(axis)] = 0;
  size_t next = 0;
  for (int64_t& stride : strides) {
    if (stride < 0) stride = from[next++];
  }
  const int64_t* x = call.in[0].i64();
  int64_t* y = call.out[0].i64();
  for_each_offset(call.out[0].shape(), strides, [&](int64_t offset) { *y++ = x[offset]; });
  return {};
}

Status constant(const OpCall& call) {
  const Tensor& y = call.out[0];
  const double value = call.op.attrs.f64("value");
  for (int64_t i = 0; i < y.size(); ++i) {
    if (is_float(y.type->dtype)) {
      y.f64()[i] = round_to(y.type->dtype, value);
    } else {
      y.i64()[i] = static_cast<int64_t>(value);
    }
  }
  return {};
}

Status causal_mask(const OpCall& call) {
  const Shape& shape = call.in[0].shape();
  const int64_t num_rows = shape.dim(-2);
  const int64_t num_columns = shape.dim(-1);
  const double fill = call.op.attrs.f64("fill");
  for (int64_t i = 0; i < call.in[0].size(); ++i) {
    const int64_t s = i % num_columns;
    const int64_t t = i / num_columns % num_rows;
    const bool kept = s <= t + (num_columns - num_rows);
    call.out[0].f64()[i] = kept ? call.in[0].f64()[i] : fill;
  }
  return {};
}

Status philox_uniform(const OpCall& call) {
  const int64_t* key = call.in[0].i64();
  const PhiloxStream stream{static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1])};
  const Tensor& y = call.out[0];
  for (int64_t i = 0; i < y.size(); ++i)
    y.f64()[i] = round_to(y.type->dtype, stream.uniform(static_cast<uint64_t>(i)));
  return {};
}

}  // namespace sgactor::kernels::reference
