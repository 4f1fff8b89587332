// Shape rules of products of 8-bit floats. M, N, K as in op_table.cc.
#include "graph/ir/shape_rules.h"

#include <fmt/format.h>

#include <array>

namespace sgactor::graph::rules {
namespace {

bool is_f8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

Status need_number(Operands operands, size_t index, std::string_view what) {
  return need_type(operands, index, DType::kF32, Shape{}, what);
}

/// q of an operand x that may be transposed.
Result<TensorType> quantized(Operands operands, const Attrs& attrs, bool transposed) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_number(operands, 1, "the largest magnitude"));
  const DType dtype = attrs.dtype("dtype");
  if (!is_f8(dtype)) {
    return bad(fmt::format("dtype is {}, expected f8e4m3 or f8e5m2", dtype_name(dtype)));
  }
  if (!transposed) return TensorType{dtype, operands[0].shape};
  SGA_TRY(need_rank(operands, 0, 2));
  return TensorType{dtype, Shape{operands[0].shape.dim(1), operands[0].shape.dim(0)}};
}

TensorType number() { return {DType::kF32, Shape{}}; }

/// Type of the product of the two matrices that `pair` begins with.
Result<TensorType> product(Operands pair, const Attrs& attrs, DType dtype) {
  std::array<TensorType, 2> wide;
  for (size_t i = 0; i < 2; ++i) {
    SGA_TRY(need_rank(pair, i, 2));
    if (!is_f8(pair[i].dtype)) {
      return bad(fmt::format("operand is {}, expected an 8-bit float type", pair[i].to_string()));
    }
    SGA_TRY(need_number(pair, i + 2, "the scale of an operand"));
    wide[i] = {DType::kF32, pair[i].shape};
  }
  SGA_ASSIGN(const std::vector<TensorType> types, matmul_shape(wide, attrs));
  return TensorType{dtype, types[0].shape};
}

}  // namespace

Types quantize_f8_shape(Operands operands, const Attrs& attrs) {
  SGA_ASSIGN(TensorType q, quantized(operands, attrs, attrs.flag("transposed")));
  return std::vector<TensorType>{std::move(q), number()};
}

Types quantize_f8_observed_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_number(operands, 2, "the largest magnitude seen"));
  SGA_ASSIGN(TensorType q, quantized(operands, attrs, attrs.flag("transposed")));
  return std::vector<TensorType>{std::move(q), number(), number()};
}

Types quantize_f8_both_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_number(operands, 2, "the largest magnitude seen"));
  SGA_ASSIGN(TensorType q, quantized(operands, attrs, false));
  SGA_ASSIGN(TensorType transposed, quantized(operands, attrs, true));
  return std::vector<TensorType>{std::move(q), number(), number(), std::move(transposed)};
}

Types scaled_matmul_shape(Operands operands, const Attrs& attrs) {
  const DType dtype = attrs.dtype("dtype");
  if (!is_float(dtype) || is_f8(dtype)) {
    return bad(fmt::format("dtype is {}, expected a wider float type", dtype_name(dtype)));
  }
  SGA_ASSIGN(TensorType type, product(operands, attrs, dtype));
  if (operands.size() > 4)
    SGA_TRY(need_type(operands, 4, type.dtype, type.shape, "what the product is added to"));
  return std::vector<TensorType>{std::move(type)};
}

Types scaled_matmul_accumulate_shape(Operands operands, const Attrs& attrs) {
  SGA_ASSIGN(TensorType type, product(operands.subspan(1), attrs, DType::kF32));
  const std::array<TensorType, 2> pair = {operands[0], std::move(type)};
  return accumulate_shape(pair, attrs);
}

Types update_amax_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_number(operands, 0, "the largest magnitude"));
  SGA_TRY(need_number(operands, 1, "the largest magnitude seen"));
  return std::vector<TensorType>{number()};
}

}  // namespace sgactor::graph::rules
