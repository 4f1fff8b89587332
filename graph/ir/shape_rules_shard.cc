// Shape rules of one rank's part of ops over a dim that is cut. Letters as in op_table.cc; v is the
// rank's part of the vocabulary V.
#include "graph/base/units.h"
#include "graph/ir/shape_rules.h"

#include <fmt/format.h>

namespace sgactor::graph::rules {
namespace {

Status need_index(Operands operands, size_t index) {
  return need_type(operands, index, DType::kI32, Shape{}, "the rank's index");
}

Status need_count(const Attrs& attrs, std::string_view name) {
  if (attrs.i64(name) >= 0) return {};
  return bad(fmt::format("{} is {}", name, attrs.i64(name)));
}

/// logits[N, v] at 0.
Status need_logits(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_rank(operands, 0, 2));
  return need_count(attrs, "vocab");
}

/// stat[N] of `like`[N, v].
TensorType row_stat(const TensorType& like) {
  return {stat_dtype(like.dtype), Shape{like.shape.dim(0)}};
}

Status need_row_stat(Operands operands, size_t index) {
  const TensorType type = row_stat(operands[0]);
  return need_type(operands, index, type.dtype, type.shape, "one a row of the logits");
}

Status need_targets(Operands operands, size_t index) {
  return need_type(operands, index, DType::kI32, Shape{operands[0].shape.dim(0)},
                   "one target a row");
}

}  // namespace

Types gather_shard_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_index(operands, 2));
  SGA_TRY(need_count(attrs, "rows"));
  return gather_shape(operands.first(2), attrs);
}

Types scatter_add_shard_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_index(operands, 2));
  SGA_TRY(need_count(attrs, "shard_rows"));
  SGA_ASSIGN(std::vector<TensorType> types, scatter_add_shape(operands.first(2), attrs));
  types[0].shape.set_dim(0, attrs.i64("shard_rows"));
  return types;
}

Types cross_entropy_max_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_logits(operands, attrs));
  SGA_TRY(need_index(operands, 1));
  return std::vector<TensorType>{row_stat(operands[0])};
}

Types cross_entropy_shard_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_logits(operands, attrs));
  SGA_TRY(need_targets(operands, 1));
  SGA_TRY(need_row_stat(operands, 2));
  SGA_TRY(need_index(operands, 3));
  return std::vector<TensorType>{row_stat(operands[0]), row_stat(operands[0])};
}

Types cross_entropy_combine_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_rank(operands, 0, 1));
  SGA_TRY(need_type(operands, 0, DType::kI32, operands[0].shape, "targets"));
  if (operands[1].dtype != DType::kF32 && operands[1].dtype != DType::kF64) {
    return bad(fmt::format("operand 1 is {}, expected f32 or f64", operands[1].to_string()));
  }
  for (size_t i = 1; i < 4; ++i) {
    SGA_TRY(need_type(operands, i, operands[1].dtype, operands[0].shape, "one a target"));
  }
  return std::vector<TensorType>{{operands[1].dtype, Shape{}}, operands[1]};
}

Types cross_entropy_shard_grad_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_logits(operands, attrs));
  SGA_TRY(need_index(operands, 4));
  return cross_entropy_grad_shape(operands.first(4), attrs);
}

Types slice_shard_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_index(operands, 1));
  const int64_t axis = attrs.i64("axis");
  const int64_t members = attrs.i64("members");
  if (axis < 0 || axis >= operands[0].shape.rank()) {
    return bad(fmt::format("axis is {} for {}", axis, operands[0].to_string()));
  }
  if (members < 1 || members > INT32_MAX) return bad(fmt::format("members is {}", members));
  TensorType type = operands[0];
  const int dim = static_cast<int>(axis);
  type.shape.set_dim(dim, ceil_div(type.shape.dim(dim), members));
  return std::vector<TensorType>{type};
}

}  // namespace sgactor::graph::rules
