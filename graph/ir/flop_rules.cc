#include "graph/ir/shape_rules.h"

namespace sgactor::graph::rules {
namespace {

double count(const TensorType& type) { return static_cast<double>(type.num_elements()); }

/// Query-key pairs of one head that are not masked.
double attention_pairs(Operands operands, size_t q, size_t k, const Attrs& attrs) {
  const auto rows = static_cast<double>(operands[q].shape.dim(1));
  const auto columns = static_cast<double>(operands[k].shape.dim(1));
  if (!attrs.flag("causal")) return rows * columns;
  return rows * columns - rows * (rows - 1) / 2;
}

/// Multiply-adds of one T x S x K product over all heads and batches, counted two each.
double attention_product(Operands operands, size_t q, size_t k, const Attrs& attrs) {
  const Shape& shape = operands[q].shape;
  return 2.0 * static_cast<double>(shape.dim(0)) * static_cast<double>(shape.dim(2)) *
         static_cast<double>(shape.dim(3)) * attention_pairs(operands, q, k, attrs);
}

}  // namespace

double matmul_flops(Operands operands, Operands results, const Attrs& attrs) {
  const Shape& a = operands[0].shape;
  return 2.0 * count(results[0]) *
         static_cast<double>(a.dim(attrs.flag("trans_a") ? a.rank() - 2 : a.rank() - 1));
}

double matmul_accumulate_flops(Operands operands, Operands results, const Attrs& attrs) {
  return matmul_flops(operands.subspan(1), results, attrs) + count(results[0]);
}

double flash_attention_flops(Operands operands, Operands /*results*/, const Attrs& attrs) {
  return 2.0 * attention_product(operands, 0, 1, attrs);
}

double flash_attention_grad_flops(Operands operands, Operands /*results*/, const Attrs& attrs) {
  // Scores again, then the gradients of the values, the weights, the queries and the keys.
  return 5.0 * attention_product(operands, 1, 2, attrs);
}

double per_operand1_flops(Operands operands, Operands /*results*/, const Attrs& /*attrs*/) {
  return count(operands[1]);
}

}  // namespace sgactor::graph::rules
