#pragma once
#include "graph/base/status.h"
#include "graph/ir/op_kind.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::graph {

/// What a fused_pointwise op does to each element: a straight list of pointwise instructions.
/// Value i below the number of operands is operand i; value num_operands + j is the result of
/// instruction j. The op's result is that of the last instruction.
struct PointwiseInstruction {
  OpKind kind = OpKind::kAdd;  ///< one of is_program_op
  int32_t a = 0;
  int32_t b = 0;     ///< second value of add .. pow; else 0 and not used
  double param = 0;  ///< factor of scale, value of add_scalar; else 0
  friend bool operator==(const PointwiseInstruction&, const PointwiseInstruction&) = default;
};
using PointwiseProgram = std::vector<PointwiseInstruction>;

inline constexpr int32_t kMaxPointwiseInstructions = 64;

/// add .. pow: two values. neg .. silu, scale and add_scalar: one.
[[nodiscard]] constexpr bool is_program_binary(OpKind kind) {
  return kind >= OpKind::kAdd && kind <= OpKind::kPow;
}
[[nodiscard]] constexpr bool is_program_op(OpKind kind) {
  return kind >= OpKind::kAdd && kind <= OpKind::kAddScalar;
}

/// "mul 0 1; scale 3 0.5; add 4 2": instructions in order, their values, then scale's or
/// add_scalar's number, with as many digits as it takes to read it back exactly.
std::string print_pointwise_program(const PointwiseProgram& program);
/// Errors: kInvalidPlan: text of another form, a value that is not there yet, no or more than
/// kMaxPointwiseInstructions instructions. Safe on untrusted text.
Result<PointwiseProgram> parse_pointwise_program(std::string_view text, int32_t num_operands);

}  // namespace sgactor::graph
