// Shape rules of the pieces of a transformer, their gradients, and fused ops.
// B batch, T time, H query heads, G key-value heads, K head dim, D model dim, V vocabulary, N rows.
#include "graph/ir/pointwise_program.h"
#include "graph/ir/shape_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace sgactor::graph::rules {
namespace {

Shape without_last(const Shape& shape) {
  std::vector<int64_t> dims = shape.dims();
  dims.pop_back();
  return Shape(std::move(dims));
}

Status need_last_dim(Operands operands, size_t index) {
  if (operands[index].shape.rank() >= 1) return {};
  return bad(fmt::format("operand {} is {}, expected rank of at least 1", index,
                         operands[index].to_string()));
}

/// Operands `first` .. `last` have the dtype and shape of operand `like`.
Status need_same(Operands operands, size_t first, size_t last, size_t like) {
  for (size_t i = first; i <= last; ++i) {
    SGA_TRY(need_type(operands, i, operands[like].dtype, operands[like].shape,
                      fmt::format("the type of operand {}", like)));
  }
  return {};
}

/// x[.., D] at `x`, w[D] at `w`, both of one float dtype.
Status need_norm(Operands operands, size_t x, size_t w) {
  SGA_TRY(need_float(operands, x));
  SGA_TRY(need_last_dim(operands, x));
  return need_type(operands, w, operands[x].dtype, Shape{operands[x].shape.dim(-1)},
                   "the last dim of the normed operand");
}

/// rstd at `index` for the normed operand `x`.
Status need_rstd(Operands operands, size_t index, size_t x) {
  return need_type(operands, index, stat_dtype(operands[x].dtype), without_last(operands[x].shape),
                   "one a row of the normed operand");
}

/// q[B,T,H,K] at `q`, k[B,T,G,K] and v behind it; G divides H.
Status need_attention(Operands operands, size_t q) {
  SGA_TRY(need_float(operands, q));
  SGA_TRY(need_rank(operands, q, 4));
  SGA_TRY(need_rank(operands, q + 1, 4));
  Shape expected = operands[q].shape;
  const int64_t groups = operands[q + 1].shape.dim(2);
  if (groups < 1 || expected.dim(2) % groups != 0) {
    return bad(
        fmt::format("{} key-value heads do not divide {} query heads", groups, expected.dim(2)));
  }
  expected.set_dim(2, groups);
  SGA_TRY(need_type(operands, q + 1, operands[q].dtype, expected, "q with the heads of k"));
  return need_same(operands, q + 2, q + 2, q + 1);
}

/// lse[B,H,T] of q[B,T,H,K].
TensorType attention_stat(const TensorType& q) {
  return {stat_dtype(q.dtype), Shape{q.shape.dim(0), q.shape.dim(2), q.shape.dim(1)}};
}

/// logits[N, V] at 0, targets i32[N] at 1.
Status need_logits(Operands operands) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_rank(operands, 0, 2));
  return need_type(operands, 1, DType::kI32, Shape{operands[0].shape.dim(0)}, "one target a row");
}

/// x[N, D] at `x`, w[V, D] and targets i32[N] behind it.
Status need_head(Operands operands, size_t x) {
  SGA_TRY(need_float(operands, x));
  SGA_TRY(need_rank(operands, x, 2));
  SGA_TRY(need_rank(operands, x + 1, 2));
  const Shape weight{operands[x + 1].shape.dim(0), operands[x].shape.dim(1)};
  SGA_TRY(need_type(operands, x + 1, operands[x].dtype, weight, "[V, D] of the hidden rows"));
  return need_type(operands, x + 2, DType::kI32, Shape{operands[x].shape.dim(0)},
                   "one target a row");
}

bool is_f8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

/// Of a head in 8 bits: scales of x and w behind the five operands, and perhaps both transposed.
Status need_f8_head(Operands operands) {
  constexpr size_t kWithScales = 7;
  constexpr size_t kWithTransposes = 9;
  if (operands[1].dtype != DType::kF8E4M3) {
    return bad(fmt::format("operand 1 is {}, expected f8e4m3", operands[1].to_string()));
  }
  if (operands.size() != kWithScales && operands.size() != kWithTransposes) {
    return bad(
        fmt::format("has {} operands, expected 7 or 9 of a head in 8 bits", operands.size()));
  }
  for (size_t i = 0; i < 2; ++i) {
    SGA_TRY(need_type(operands, 5 + i, DType::kF32, Shape{}, "the scale of an operand"));
    if (operands.size() != kWithTransposes) continue;
    const Shape& shape = operands[1 + i].shape;
    SGA_TRY(need_type(operands, 7 + i, operands[1].dtype, Shape{shape.dim(1), shape.dim(0)},
                      "the transpose of an operand"));
  }
  return {};
}

}  // namespace

Types softmax_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_last_dim(operands, 0));
  return std::vector<TensorType>{operands[0]};
}

Types softmax_grad_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_last_dim(operands, 0));
  return same_pair_shape(operands, attrs);
}

Types same_pair_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_same(operands, 1, 1, 0));
  return std::vector<TensorType>{operands[0]};
}

Types causal_mask_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  if (operands[0].shape.rank() < 2) {
    return bad(fmt::format("operand 0 is {}, expected [.., T, S]", operands[0].to_string()));
  }
  return std::vector<TensorType>{operands[0]};
}

Types rms_norm_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_norm(operands, 0, 1));
  return std::vector<TensorType>{operands[0],
                                 {stat_dtype(operands[0].dtype), without_last(operands[0].shape)}};
}

Types rms_norm_grad_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_norm(operands, 1, 2));
  SGA_TRY(need_same(operands, 0, 0, 1));
  SGA_TRY(need_rstd(operands, 3, 1));
  return std::vector<TensorType>{operands[1], operands[2]};
}

Types rope_table_shape(Operands /*operands*/, const Attrs& attrs) {
  const int64_t head_dim = attrs.i64("head_dim");
  const int64_t seq_len = attrs.i64("seq_len");
  const std::string& scaling = attrs.text("scaling");
  if (head_dim < 2 || head_dim % 2 != 0) {
    return bad(fmt::format("head_dim is {}, expected an even number above 0", head_dim));
  }
  if (seq_len < 0) return bad(fmt::format("seq_len is {}", seq_len));
  if (!(attrs.f64("theta") > 0) || !std::isfinite(attrs.f64("theta"))) {
    return bad("theta is not above 0");
  }
  if (scaling != "none" && scaling != "linear" && scaling != "llama3") {
    return bad("scaling is none of: none, linear, llama3");
  }
  if (!is_float(attrs.dtype("dtype"))) return bad("dtype is not a float");
  const TensorType type{attrs.dtype("dtype"), Shape{seq_len, head_dim / 2}};
  return std::vector<TensorType>{type, type};
}

Types rotate_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_rank(operands, 0, 4));
  const Shape& x = operands[0].shape;
  if (x.dim(3) % 2 != 0) return bad(fmt::format("head dim {} is odd", x.dim(3)));
  const Shape table{x.dim(1), x.dim(3) / 2};
  SGA_TRY(need_type(operands, 1, operands[0].dtype, table, "[T, K/2] of operand 0"));
  SGA_TRY(need_type(operands, 2, operands[0].dtype, table, "[T, K/2] of operand 0"));
  return std::vector<TensorType>{operands[0]};
}

Types gather_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_rank(operands, 0, 2));
  SGA_TRY(need_type(operands, 1, DType::kI32, operands[1].shape, "ids"));
  std::vector<int64_t> dims = operands[1].shape.dims();
  dims.push_back(operands[0].shape.dim(1));
  return std::vector<TensorType>{{operands[0].dtype, Shape(std::move(dims))}};
}

Types scatter_add_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_type(operands, 0, DType::kI32, operands[0].shape, "ids"));
  SGA_TRY(need_float(operands, 1));
  SGA_TRY(need_last_dim(operands, 1));
  const int64_t width = operands[1].shape.dim(-1);
  std::vector<int64_t> dims = operands[0].shape.dims();
  dims.push_back(width);
  SGA_TRY(need_type(operands, 1, operands[1].dtype, Shape(std::move(dims)), "[ids.., D]"));
  const int64_t rows = attrs.i64("rows");
  if (rows < 0) return bad(fmt::format("rows is {}", rows));
  return std::vector<TensorType>{{operands[1].dtype, Shape{rows, width}}};
}

Types cross_entropy_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_logits(operands));
  const DType stat = stat_dtype(operands[0].dtype);
  return std::vector<TensorType>{{stat, Shape{}}, {stat, operands[1].shape}};
}

Types cross_entropy_grad_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_logits(operands));
  const DType stat = stat_dtype(operands[0].dtype);
  SGA_TRY(need_type(operands, 2, stat, operands[1].shape, "log-sum-exp, one a row"));
  SGA_TRY(need_type(operands, 3, stat, Shape{}, "the gradient of the loss"));
  return std::vector<TensorType>{operands[0]};
}

Types matmul_accumulate_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_rank(operands, 1, 2));
  SGA_ASSIGN(std::vector<TensorType> product, matmul_shape(operands.subspan(1), attrs));
  const std::array<TensorType, 2> pair = {operands[0], std::move(product[0])};
  return accumulate_shape(pair, attrs);
}

Types flash_attention_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_attention(operands, 0));
  return std::vector<TensorType>{operands[0], attention_stat(operands[0])};
}

Types flash_attention_grad_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_attention(operands, 1));
  SGA_TRY(need_same(operands, 0, 0, 1));
  SGA_TRY(need_same(operands, 4, 4, 1));
  const TensorType stat = attention_stat(operands[1]);
  SGA_TRY(need_type(operands, 5, stat.dtype, stat.shape, "log-sum-exp [B, H, T]"));
  return std::vector<TensorType>{operands[1], operands[2], operands[3]};
}

Types swiglu_shape(Operands operands, const Attrs& attrs) {
  return same_pair_shape(operands, attrs);
}

Types swiglu_grad_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_float(operands, 0));
  SGA_TRY(need_same(operands, 1, 2, 0));
  return std::vector<TensorType>{operands[0], operands[1]};
}

Types add_rms_norm_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_norm(operands, 0, 2));
  SGA_TRY(need_same(operands, 1, 1, 0));
  return std::vector<TensorType>{
      operands[0], operands[0], {stat_dtype(operands[0].dtype), without_last(operands[0].shape)}};
}

Types add_rms_norm_grad_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_norm(operands, 2, 3));
  SGA_TRY(need_same(operands, 0, 1, 2));
  SGA_TRY(need_rstd(operands, 4, 2));
  return std::vector<TensorType>{operands[2], operands[3]};
}

Types adamw_shape(Operands operands, const Attrs& /*attrs*/) {
  if (operands[0].dtype != DType::kF32 && operands[0].dtype != DType::kF64) {
    return bad(fmt::format("parameter is {}, expected f32 or f64", operands[0].to_string()));
  }
  SGA_TRY(need_same(operands, 1, 3, 0));
  for (size_t i = 4; i < 8; ++i) {
    const bool wide = operands[i].dtype == operands[0].dtype;
    SGA_TRY(need_type(operands, i, wide ? operands[0].dtype : DType::kF32, Shape{}, "a scalar"));
  }
  return std::vector<TensorType>{operands[0], operands[1], operands[2]};
}

Types linear_cross_entropy_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_head(operands, 0));
  if (is_f8(operands[0].dtype)) return bad("8-bit rows are for linear_cross_entropy_grad");
  const DType stat = stat_dtype(operands[0].dtype);
  return std::vector<TensorType>{{stat, Shape{}}, {stat, operands[2].shape}};
}

Types linear_cross_entropy_grad_shape(Operands operands, const Attrs& /*attrs*/) {
  SGA_TRY(need_head(operands, 1));
  const DType stat = stat_dtype(operands[1].dtype);
  SGA_TRY(need_type(operands, 0, stat, operands[2].shape, "an accumulator of the weight"));
  SGA_TRY(need_type(operands, 4, stat, Shape{}, "the gradient of the loss"));
  TensorType dx = operands[1];
  if (is_f8(dx.dtype)) {
    SGA_TRY(need_f8_head(operands));
    dx.dtype = DType::kBF16;
  } else if (operands.size() != 5) {
    return bad(fmt::format("has {} operands, expected 5 of a head that is not in 8 bits",
                           operands.size()));
  }
  return std::vector<TensorType>{operands[0], std::move(dx), {stat, Shape{}}};
}

Types fused_pointwise_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_float(operands, 0));
  const auto& dims = operands[0].shape.dims();
  for (size_t i = 1; i < operands.size(); ++i) {
    const auto& own = operands[i].shape.dims();
    if (operands[i].dtype != operands[0].dtype || own.size() > dims.size() ||
        !std::equal(own.rbegin(), own.rend(), dims.rbegin())) {
      return bad(fmt::format("operand {} is {}, expected a suffix of {}", i,
                             operands[i].to_string(), operands[0].to_string()));
    }
  }
  const Status program =
      parse_pointwise_program(attrs.text("program"), static_cast<int32_t>(operands.size()))
          .status();
  if (!program.ok()) return program;
  return std::vector<TensorType>{operands[0]};
}

}  // namespace sgactor::graph::rules
