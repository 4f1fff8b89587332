#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace sgactor::graph {

class Builder;

/// The one visible table of ops: a row says everything the compiler knows about an op.

struct AttrSpec {
  std::string_view name;
  enum class Type : uint8_t { kInt, kFloat, kBool, kText, kIntList, kDType } type;
};

/// Result types from operand types and attributes, or kInvalidPlan that says what was expected.
using ShapeRule = Result<std::vector<TensorType>> (*)(std::span<const TensorType> operands,
                                                      const Attrs& attrs);

/// Appends the gradient of `op` through `builder`. `result_grads[i]` is the gradient of result i or
/// kNoValue if nothing depends on it (at least one is given). Sets `operand_grads[j]`, or leaves it
/// kNoValue where operand j has none (integer operands, operands the rule proves constant).
/// `op` must not live in the builder's graph: that one grows under the rule, so pass a copy.
using GradientRule = void (*)(Builder& builder, const Op& op, std::span<const ValueId> result_grads,
                              std::span<ValueId> operand_grads);

/// Floating-point operations of one execution (a multiply-add counts two); 0 for data movement.
using FlopRule = double (*)(std::span<const TensorType> operands,
                            std::span<const TensorType> results, const Attrs& attrs);

/// How results may be placed on a mesh axis given its operands' placements; the cluster part fills
/// this column.
struct ShardingRule;

/// Storage shared by a result and an operand.
struct AliasSpec {
  int8_t result = 0;
  int8_t operand = 0;
  enum class Kind : uint8_t {
    kView,  ///< always the same bytes; costs nothing (reshape)
    kMust,  ///< updates the operand in place; the operand must not be used afterwards (accumulate,
            ///< adamw)
    kMay,   ///< backends allow it where the operand's last use is this op (pointwise); operand
            ///< and result have one type
  } kind = Kind::kView;
};

struct OpInfo {
  OpKind kind;
  std::string_view name;  ///< text form
  int8_t min_operands;
  int8_t max_operands;  ///< -1: any number
  int8_t num_results;   ///< -1: one an operand
  std::span<const AttrSpec> attrs;
  ShapeRule shape_rule;
  GradientRule gradient;  ///< nullptr: not differentiable (gradient ops, fused ops, state ops)
  FlopRule flops;         ///< nullptr: number of result elements if pointwise, else 0
  const ShardingRule* sharding;
  std::span<const AliasSpec> aliases;
  bool pointwise;     ///< element i of each result depends on element i of the (broadcast) operands
                      ///< only
  bool fused;         ///< made by passes only
  bool communicates;  ///< moves data between logical ranks: a launch of its own, no backend has it
  std::string_view doc;  ///< operands -> results, in the letters of the table's head comment
};

std::span<const OpInfo> op_table();
const OpInfo& op_info(OpKind kind);
std::optional<OpKind> parse_op_kind(std::string_view name);

/// Largest rank of a type. More is refused by check_type.
inline constexpr int kMaxRank = 12;
/// Is `type` one a value may have: known dtype, rank <= kMaxRank, dims >= 0, and bytes (with zero
/// dims counted as one) below 2^62, so that num_elements() and bytes() do not overflow. Errors:
/// kInvalidPlan.
Status check_type(const TensorType& type);
/// Attributes are those of the row: each name given once, with the row's type. Errors:
/// kInvalidPlan.
Status check_attrs(const OpInfo& info, const Attrs& attrs);
/// Result types of an op, each passing check_type. Checks arity and attributes first. Pre: every
/// operand passes check_type. Errors: kInvalidPlan. Safe on untrusted attributes.
Result<std::vector<TensorType>> infer_types(OpKind kind, std::span<const TensorType> operands,
                                            const Attrs& attrs);

/// Floating-point operations of one op by its row's rule.
double op_flops(const Graph& graph, const Op& op);
/// Bytes read and written by one op: operands and results in native storage; views move nothing.
int64_t op_bytes(const Graph& graph, const Op& op);

}  // namespace sgactor::graph
