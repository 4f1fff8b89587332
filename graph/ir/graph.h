#pragma once
#include "graph/base/shape.h"
#include "graph/base/status.h"
#include "graph/ir/op_kind.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sgactor::graph {

using ValueId = uint32_t;  ///< dense index into Graph::values()
using OpId = uint32_t;     ///< dense index into Graph::ops(); ops stand in a topological order
inline constexpr ValueId kNoValue = 0xffffffffU;
inline constexpr OpId kNoOp = 0xffffffffU;

/// Attribute of an op. Text forms: 3, 0.5 (always with '.', 'e', "inf" or "nan"), true, "text", [1,
/// 2], f32.
using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, DType>;

/// Attributes of one op, sorted by name. Which names an op takes, with types and defaults, is in
/// its row of the op table.
class Attrs {
 public:
  void set(std::string_view name, Attr value);
  [[nodiscard]] const Attr* find(std::string_view name) const;
  /// Typed reads for ops that passed the verifier (which checks names and types against the table).
  [[nodiscard]] int64_t i64(std::string_view name) const;
  [[nodiscard]] double f64(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;
  [[nodiscard]] const std::vector<int64_t>& list(std::string_view name) const;
  [[nodiscard]] DType dtype(std::string_view name) const;
  [[nodiscard]] const std::vector<std::pair<std::string, Attr>>& entries() const {
    return entries_;
  }
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  std::vector<std::pair<std::string, Attr>> entries_;
};

/// When in a step an op runs. kPrepare (gathers of updated parameters) once, before all others;
/// kForward and kBackward once a micro-batch; kReduce (sums of gradients, their norm) once a step
/// before the commit; kUpdate once a step after the commit.
enum class Phase : uint8_t { kPrepare = 0, kForward, kBackward, kReduce, kUpdate };
std::string_view to_string(Phase phase);
std::optional<Phase> parse_phase(std::string_view text);

/// What a graph input or output is to the step. Inputs and outputs of the same role and name are
/// the same tensor before and after (an accumulator, a parameter in the update).
enum class Role : uint8_t {
  kParameter = 0,  ///< master weights, named as in Hugging Face checkpoints
  kMoment,         ///< optimizer state: "m/<parameter>", "v/<parameter>"
  kAccumulator,    ///< gradient of one use of a parameter, summed over micro-batches:
                   ///< "grad/<parameter>" or "grad/<parameter>#1" …; also "loss"
  kTokens,         ///< i32[B, T] token ids of a micro-batch
  kTargets,        ///< i32[B, T] targets; negative: not counted
  kScalar,  ///< a number given by the run: "step" (f64, 1 for the first step), "inv_valid_tokens"
            ///< (f32), "tp_index" (i32, the rank's coordinate along tp)
  kLoss,    ///< f32 scalar: the micro-batch's part of the step's loss
  kLogits,
  kMetric,      ///< a number to report: "grad_norm", "lr"
  kActivation,  ///< value between subgraphs
};
std::string_view to_string(Role role);
std::optional<Role> parse_role(std::string_view text);
inline constexpr int kNumRoles = 10;
inline constexpr int kNumPhases = 5;

struct Value {
  TensorType type;
  OpId producer = kNoOp;  ///< kNoOp: a graph input
  uint32_t result = 0;    ///< which result of the producer, or which input
  friend bool operator==(const Value&, const Value&) = default;
};

struct Op {
  OpKind kind = OpKind::kAdd;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attrs attrs;
  Phase phase = Phase::kForward;
  int32_t segment =
      0;  ///< index into Graph::segments(): "embed", "layer.0", …, "head"; passes cut here
  friend bool operator==(const Op&, const Op&) = default;
};

struct GraphInput {
  ValueId value = kNoValue;
  Role role = Role::kActivation;
  std::string name;
  friend bool operator==(const GraphInput&, const GraphInput&) = default;
};
struct GraphOutput {
  ValueId value = kNoValue;
  Role role = Role::kActivation;
  std::string name;
  friend bool operator==(const GraphOutput&, const GraphOutput&) = default;
};

/// A dataflow graph in SSA form. Values are defined once, by an input or an op; ops are in
/// topological order. Plain data: copyable, comparable, no identity beyond ids. Not thread-safe for
/// writing. Everything that appends keeps ids dense; passes that delete build a new graph (see
/// rewrite.h).
class Graph {
 public:
  std::string name;

  [[nodiscard]] const std::vector<Value>& values() const { return values_; }
  [[nodiscard]] const std::vector<Op>& ops() const { return ops_; }
  [[nodiscard]] const std::vector<GraphInput>& inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<GraphOutput>& outputs() const { return outputs_; }
  [[nodiscard]] const std::vector<std::string>& segments() const { return segments_; }

  [[nodiscard]] const TensorType& type(ValueId v) const { return values_[v].type; }
  [[nodiscard]] const Value& value(ValueId v) const { return values_[v]; }
  [[nodiscard]] const Op& op(OpId o) const { return ops_[o]; }
  [[nodiscard]] Op& mutable_op(OpId o) { return ops_[o]; }
  /// Value of the input / output with this role and name; kNoValue if there is none.
  [[nodiscard]] ValueId find_input(Role role, std::string_view input_name) const;
  [[nodiscard]] ValueId find_output(Role role, std::string_view output_name) const;

  ValueId add_input(TensorType type, Role role, std::string input_name);
  /// Appends an op after all others. `types` are its result types, as the op table's shape rule
  /// gives them (Builder computes them; the verifier checks them). Returns the op; its results are
  /// consecutive new values.
  OpId add_op(OpKind kind, std::vector<ValueId> operands, Attrs attrs,
              const std::vector<TensorType>& types, Phase phase, int32_t segment);
  void add_output(ValueId value, Role role, std::string output_name);
  void clear_outputs() { outputs_.clear(); }
  /// Index of the segment with this name, added at the end if new.
  int32_t segment_index(std::string_view segment_name);

  /// Number of uses of each value by ops (outputs not counted).
  [[nodiscard]] std::vector<int32_t> use_counts() const;

  /// Same ids, ops, names and segments. A NaN attribute makes graphs unequal.
  friend bool operator==(const Graph&, const Graph&) = default;

 private:
  std::vector<Value> values_;
  std::vector<Op> ops_;
  std::vector<GraphInput> inputs_;
  std::vector<GraphOutput> outputs_;
  std::vector<std::string> segments_;
};

}  // namespace sgactor::graph
