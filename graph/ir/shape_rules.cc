// Shape rules of pointwise ops, structure, reductions and matmul.
#include "graph/ir/shape_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sgactor::graph::rules {
namespace {

/// `small` is `large` without some leading dims.
bool is_suffix(const Shape& small, const Shape& large) {
  return small.rank() <= large.rank() &&
         std::equal(small.dims().rbegin(), small.dims().rend(), large.dims().rbegin());
}

Status need_axis(int64_t axis, int rank) {
  if (axis >= 0 && axis < rank) return {};
  return bad(fmt::format("axis {} is not in [0, {})", axis, rank));
}

/// Axes in [0, rank), strictly ascending.
Status need_axes(const std::vector<int64_t>& axes, int rank) {
  int64_t last = -1;
  for (int64_t axis : axes) {
    if (axis <= last || axis >= rank) {
      return bad(fmt::format("axes must ascend and be in [0, {}), found {}", rank, axis));
    }
    last = axis;
  }
  return {};
}

Result<TensorType> attr_type(DType dtype, const std::vector<int64_t>& dims) {
  TensorType type{dtype, Shape(dims)};
  SGA_TRY(check_type(type));
  return type;
}

Status add_extent(int64_t& total, int64_t extent) {
  if (extent < 0 || __builtin_add_overflow(total, extent, &total)) {
    return bad(fmt::format("extent {} is negative or too large", extent));
  }
  return {};
}

}  // namespace

Status bad(std::string message) { return invalid_plan(std::move(message)); }

DType stat_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

Status need_float(Operands operands, size_t index) {
  if (is_float(operands[index].dtype)) return {};
  return bad(
      fmt::format("operand {} is {}, expected a float dtype", index, operands[index].to_string()));
}

Status need_rank(Operands operands, size_t index, int rank) {
  if (operands[index].shape.rank() == rank) return {};
  return bad(
      fmt::format("operand {} is {}, expected rank {}", index, operands[index].to_string(), rank));
}

Status need_type(Operands operands, size_t index, DType dtype, const Shape& shape,
                 std::string_view what) {
  const TensorType& type = operands[index];
  if (type.dtype == dtype && type.shape == shape) return {};
  return bad(fmt::format("operand {} is {}, expected {}{} ({})", index, type.to_string(),
                         dtype_name(dtype), shape.to_string(), what));
}

Types binary_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  if (operands[1].dtype != operands[0].dtype || !is_suffix(operands[1].shape, operands[0].shape)) {
    return bad(fmt::format(
        "operand 1 is {}, expected the type of operand 0, {}, or one whose shape is a suffix of it",
        operands[1].to_string(), operands[0].to_string()));
  }
  return std::vector<TensorType>{operands[0]};
}

Types unary_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  return std::vector<TensorType>{operands[0]};
}

Types cast_shape(Operands operands, const Attrs& attrs) {
  return std::vector<TensorType>{{attrs.dtype("dtype"), operands[0].shape}};
}

Types reshape_shape(Operands operands, const Attrs& attrs) {
  SGA_ASSIGN(TensorType type, attr_type(operands[0].dtype, attrs.list("shape")));
  if (type.num_elements() != operands[0].num_elements()) {
    return bad(fmt::format("shape {} has another number of elements than operand {}",
                           type.shape.to_string(), operands[0].to_string()));
  }
  return std::vector<TensorType>{std::move(type)};
}

Types transpose_shape(Operands operands, const Attrs& attrs) {
  const Shape& shape = operands[0].shape;
  const std::vector<int64_t>& perm = attrs.list("perm");
  uint32_t seen = 0;
  std::vector<int64_t> dims;
  if (perm.size() == static_cast<size_t>(shape.rank())) {
    for (int64_t from : perm) {
      if (from < 0 || from >= shape.rank()) break;
      seen |= 1U << from;
      dims.push_back(shape.dim(static_cast<int>(from)));
    }
  }
  if (seen + 1 != 1U << shape.rank()) {
    return bad(fmt::format("perm is no permutation of the {} dims of operand 0", shape.rank()));
  }
  return std::vector<TensorType>{{operands[0].dtype, Shape(std::move(dims))}};
}

Types slice_shape(Operands operands, const Attrs& attrs) {
  TensorType type = operands[0];
  const int64_t axis = attrs.i64("axis");
  const int64_t start = attrs.i64("start");
  const int64_t size = attrs.i64("size");
  SGA_TRY(need_axis(axis, type.shape.rank()));
  const int64_t extent = type.shape.dim(static_cast<int>(axis));
  if (start < 0 || size < 0 || start > extent || size > extent - start) {
    return bad(fmt::format("[{}, {} + {}) is not within extent {} of axis {}", start, start, size,
                           extent, axis));
  }
  type.shape.set_dim(static_cast<int>(axis), size);
  return std::vector<TensorType>{std::move(type)};
}

Types pad_shape(Operands operands, const Attrs& attrs) {
  TensorType type = operands[0];
  const int64_t axis = attrs.i64("axis");
  SGA_TRY(need_axis(axis, type.shape.rank()));
  int64_t extent = type.shape.dim(static_cast<int>(axis));
  SGA_TRY(add_extent(extent, attrs.i64("before")));
  SGA_TRY(add_extent(extent, attrs.i64("after")));
  type.shape.set_dim(static_cast<int>(axis), extent);
  return std::vector<TensorType>{std::move(type)};
}

Types concat_shape(Operands operands, const Attrs& attrs) {
  TensorType type = operands[0];
  const int64_t axis = attrs.i64("axis");
  SGA_TRY(need_axis(axis, type.shape.rank()));
  const int at = static_cast<int>(axis);
  int64_t extent = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    TensorType other = operands[i];
    if (other.shape.rank() == type.shape.rank()) {
      SGA_TRY(add_extent(extent, other.shape.dim(at)));
      other.shape.set_dim(at, type.shape.dim(at));
    }
    if (other != type) {
      return bad(fmt::format("operand {} is {}, expected {} but for axis {}", i,
                             operands[i].to_string(), type.to_string(), axis));
    }
  }
  type.shape.set_dim(at, extent);
  return std::vector<TensorType>{std::move(type)};
}

Types broadcast_shape(Operands operands, const Attrs& attrs) {
  SGA_ASSIGN(TensorType type, attr_type(operands[0].dtype, attrs.list("shape")));
  const std::vector<int64_t>& axes = attrs.list("axes");
  SGA_TRY(need_axes(axes, type.shape.rank()));
  std::vector<int64_t> kept;
  for (int dim = 0; dim < type.shape.rank(); ++dim) {
    if (!std::binary_search(axes.begin(), axes.end(), dim)) kept.push_back(type.shape.dim(dim));
  }
  if (kept != operands[0].shape.dims()) {
    return bad(fmt::format("operand 0 is {}, expected shape {}: the result's without `axes`",
                           operands[0].to_string(), Shape(std::move(kept)).to_string()));
  }
  return std::vector<TensorType>{std::move(type)};
}

Types constant_shape(Operands /*operands*/, const Attrs& attrs) {
  SGA_ASSIGN(TensorType type, attr_type(attrs.dtype("dtype"), attrs.list("shape")));
  return std::vector<TensorType>{std::move(type)};
}

Types reduce_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_float(operands, 0));
  const Shape& shape = operands[0].shape;
  const std::vector<int64_t>& axes = attrs.list("axes");
  SGA_TRY(need_axes(axes, shape.rank()));
  std::vector<int64_t> kept;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (!std::binary_search(axes.begin(), axes.end(), dim)) kept.push_back(shape.dim(dim));
  }
  return std::vector<TensorType>{{operands[0].dtype, Shape(std::move(kept))}};
}

Types sum_squares_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_float(operands, 0));
  const int64_t chunk = attrs.i64("chunk");
  if (chunk < 1) return bad(fmt::format("chunk is {}, expected at least 1", chunk));
  const int64_t count = operands[0].num_elements();
  const int64_t chunks = count / chunk + (count % chunk != 0 ? 1 : 0);
  return std::vector<TensorType>{{stat_dtype(operands[0].dtype), Shape{chunks}}};
}

Types tree_sum_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_rank(operands, 0, 1));
  return std::vector<TensorType>{{operands[0].dtype, Shape{}}};
}

Types matmul_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_float(operands, 0));
  const Shape& a = operands[0].shape;
  const Shape& b = operands[1].shape;
  const int rank = a.rank();
  if (rank < 2 || b.rank() != rank || operands[1].dtype != operands[0].dtype ||
      !std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin())) {
    return bad(
        fmt::format("operands are {} and {}, expected one dtype, equal rank of at least 2 "
                    "and equal leading dims",
                    operands[0].to_string(), operands[1].to_string()));
  }
  const bool trans_a = attrs.flag("trans_a");
  const bool trans_b = attrs.flag("trans_b");
  const int64_t inner_a = a.dim(trans_a ? -2 : -1);
  const int64_t inner_b = b.dim(trans_b ? -1 : -2);
  if (inner_a != inner_b) {
    return bad(fmt::format("inner dims are {} and {} (operands {} and {}, trans_a {}, trans_b {})",
                           inner_a, inner_b, a.to_string(), b.to_string(), trans_a, trans_b));
  }
  TensorType type = operands[0];
  type.shape.set_dim(-2, a.dim(trans_a ? -1 : -2));
  type.shape.set_dim(-1, b.dim(trans_b ? -2 : -1));
  if (operands.size() > 2)
    SGA_TRY(need_type(operands, 2, type.dtype, type.shape, "what the product is added to"));
  return std::vector<TensorType>{std::move(type)};
}

Types accumulate_shape(Operands operands, const Attrs& /*attrs*/) {
  if (operands[0].dtype != DType::kF32 && operands[0].dtype != DType::kF64) {
    return bad(fmt::format("accumulator is {}, expected f32 or f64", operands[0].to_string()));
  }
  SGA_TRY(need_float(operands, 1));
  SGA_TRY(
      need_type(operands, 1, operands[1].dtype, operands[0].shape, "the shape of the accumulator"));
  return std::vector<TensorType>{operands[0]};
}

Types philox_uniform_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_type(operands, 0, DType::kI64, Shape{2}, "the key: seed, stream"));
  const DType dtype = attrs.dtype("dtype");
  if (!is_float(dtype)) return bad("dtype is not a float");
  SGA_ASSIGN(TensorType type, attr_type(dtype, attrs.list("shape")));
  return std::vector<TensorType>{std::move(type)};
}

}  // namespace sgactor::graph::rules
