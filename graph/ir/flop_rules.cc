#include "graph/ir/shape_rules.h"

#include <algorithm>
#include <string>

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

double scaled_matmul_flops(Operands operands, Operands results, const Attrs& attrs) {
  return matmul_flops(operands, results, attrs);
}

double scaled_matmul_accumulate_flops(Operands operands, Operands results, const Attrs& attrs) {
  return matmul_accumulate_flops(operands, results, attrs);
}

double flash_attention_flops(Operands operands, Operands /*results*/, const Attrs& attrs) {
  return 2.0 * attention_product(operands, 0, 1, attrs);
}

double flash_attention_grad_flops(Operands operands, Operands /*results*/, const Attrs& attrs) {
  // Scores again, then the gradients of the values, the weights, the queries and the keys.
  return 5.0 * attention_product(operands, 1, 2, attrs);
}

double linear_cross_entropy_flops(Operands operands, Operands /*results*/, const Attrs& /*attrs*/) {
  const auto vocab = static_cast<double>(operands[1].shape.dim(0));
  return 2.0 * count(operands[0]) * vocab + 4.0 * count(operands[2]) * vocab;
}

double linear_cross_entropy_grad_flops(Operands operands, Operands results, const Attrs& attrs) {
  // Three products of the same size, the softmax's two passes, the sum into the accumulator.
  const double forward = linear_cross_entropy_flops(operands.subspan(1), results, attrs);
  const double product = 2.0 * count(operands[1]) * static_cast<double>(operands[2].shape.dim(0));
  return 2.0 * forward + product + count(operands[0]);
}

double fused_pointwise_flops(Operands /*operands*/, Operands results, const Attrs& attrs) {
  const std::string& program = attrs.text("program");
  const auto instructions = 1 + std::count(program.begin(), program.end(), ';');
  return static_cast<double>(instructions) * count(results[0]);
}

double per_operand1_flops(Operands operands, Operands /*results*/, const Attrs& /*attrs*/) {
  return count(operands[1]);
}

}  // namespace sgactor::graph::rules
