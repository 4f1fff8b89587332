#include "graph/ir/verify.h"

#include "graph/ir/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace sgactor::graph {
namespace {

std::string op_name(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  const bool known = static_cast<int>(op.kind) < kNumOpKinds;
  std::string text = fmt::format("op {} {}", id, known ? op_info(op.kind).name : "?");
  if (!op.results.empty()) text += fmt::format(" %{}", op.results[0]);
  return text;
}

/// Values whose bytes are the same because of views, and which of those were overwritten.
class Storage {
 public:
  explicit Storage(size_t num_values) : root_(num_values), overwritten_by_(num_values, kNoOp) {
    std::iota(root_.begin(), root_.end(), 0U);
  }
  void add_view(ValueId view, ValueId of) { root_[view] = root_[of]; }
  void overwrite(ValueId v, OpId by) { overwritten_by_[root_[v]] = by; }
  [[nodiscard]] bool same(ValueId a, ValueId b) const { return root_[a] == root_[b]; }
  /// kNoOp: the value is intact.
  [[nodiscard]] OpId overwritten_by(ValueId v) const { return overwritten_by_[root_[v]]; }

 private:
  std::vector<ValueId> root_;
  std::vector<OpId> overwritten_by_;
};

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), storage_(graph.values().size()) {}

  Status run() {
    SGA_TRY(check_segments());
    SGA_TRY(check_inputs());
    for (OpId id = 0; id < graph_.ops().size(); ++id) {
      if (Status s = check_op(id); !s.ok()) return s.with_context(op_name(graph_, id));
    }
    if (num_defined_ != graph_.values().size()) {
      return invalid_plan(fmt::format("{} values, but inputs and ops define {}",
                                      graph_.values().size(), num_defined_));
    }
    return check_outputs();
  }

 private:
  using Names = std::unordered_map<std::string_view, ValueId>;

  Status check_segments() const {
    std::unordered_map<std::string_view, int> seen;
    for (const std::string& segment : graph_.segments()) {
      if (!seen.emplace(segment, 0).second) {
        return invalid_plan(fmt::format("segment \"{}\" is listed twice", segment));
      }
    }
    return {};
  }

  Status check_inputs() {
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      const GraphInput& input = graph_.inputs()[i];
      if (static_cast<int>(input.role) >= kNumRoles) {
        return invalid_plan(fmt::format("input {} has an unknown role", i));
      }
      const std::string what =
          fmt::format("input {} {} \"{}\"", i, to_string(input.role), input.name);
      if (input.value >= graph_.values().size()) return invalid_plan(what + " is no value");
      const Value& value = graph_.value(input.value);
      if (value.producer != kNoOp || value.result != i) {
        return invalid_plan(what + ": its value is defined elsewhere");
      }
      if (Status s = check_type(value.type); !s.ok()) return s.with_context(what);
      if (!inputs_[static_cast<size_t>(input.role)].emplace(input.name, input.value).second) {
        return invalid_plan(what + ": the role has another input of this name");
      }
      ++num_defined_;
    }
    return {};
  }

  Status check_op(OpId id) {
    const Op& op = graph_.op(id);
    if (static_cast<int>(op.kind) >= kNumOpKinds) return invalid_plan("its kind is unknown");
    if (static_cast<int>(op.phase) >= kNumPhases) return invalid_plan("its phase is unknown");
    const size_t num_segments = std::max<size_t>(graph_.segments().size(), 1);
    if (op.segment < 0 || static_cast<size_t>(op.segment) >= num_segments) {
      return invalid_plan(fmt::format("segment {} is not in [0, {})", op.segment, num_segments));
    }
    SGA_TRY(check_operands(id, op));
    SGA_TRY(check_results(id, op));
    return check_aliases(id, op);
  }

  Status check_operands(OpId id, const Op& op) {
    operand_types_.clear();
    for (ValueId v : op.operands) {
      if (v >= graph_.values().size())
        return invalid_plan(fmt::format("operand %{} is no value", v));
      const Value& value = graph_.value(v);
      if (value.producer != kNoOp) {
        if (value.producer >= id) {
          return invalid_plan(fmt::format("operand %{} is not defined before it", v));
        }
        const Phase phase = graph_.op(value.producer).phase;
        if (phase > op.phase) {
          return invalid_plan(fmt::format("runs in phase {}, before its operand %{} (phase {})",
                                          to_string(op.phase), v, to_string(phase)));
        }
      }
      if (const OpId by = storage_.overwritten_by(v); by != kNoOp) {
        return invalid_plan(
            fmt::format("operand %{} was updated in place by {}", v, op_name(graph_, by)));
      }
      operand_types_.push_back(value.type);
    }
    return {};
  }

  Status check_results(OpId id, const Op& op) {
    SGA_ASSIGN(const std::vector<TensorType> types, infer_types(op.kind, operand_types_, op.attrs));
    if (op.results.size() != types.size()) {
      return invalid_plan(
          fmt::format("has {} results, expected {}", op.results.size(), types.size()));
    }
    for (size_t i = 0; i < types.size(); ++i) {
      const ValueId v = op.results[i];
      if (v >= graph_.values().size())
        return invalid_plan(fmt::format("result %{} is no value", v));
      const Value& value = graph_.value(v);
      if (value.producer != id || value.result != i) {
        return invalid_plan(fmt::format("result %{} is defined elsewhere", v));
      }
      if (value.type != types[i]) {
        return invalid_plan(fmt::format("result %{} is {}, expected {}", v, value.type.to_string(),
                                        types[i].to_string()));
      }
      ++num_defined_;
    }
    return {};
  }

  Status check_aliases(OpId id, const Op& op) {
    for (const AliasSpec& alias : op_info(op.kind).aliases) {
      const ValueId updated = op.operands[static_cast<size_t>(alias.operand)];
      if (alias.kind == AliasSpec::Kind::kView) {
        storage_.add_view(op.results[static_cast<size_t>(alias.result)], updated);
      }
      if (alias.kind != AliasSpec::Kind::kMust) continue;
      for (size_t i = 0; i < op.operands.size(); ++i) {
        if (i != static_cast<size_t>(alias.operand) && storage_.same(op.operands[i], updated)) {
          return invalid_plan(fmt::format(
              "operand %{} is updated in place and also read as operand {}", updated, i));
        }
      }
      storage_.overwrite(updated, id);
    }
    return {};
  }

  Status check_outputs() const {
    std::array<Names, kNumRoles> outputs;
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const GraphOutput& output = graph_.outputs()[i];
      if (static_cast<int>(output.role) >= kNumRoles) {
        return invalid_plan(fmt::format("output {} has an unknown role", i));
      }
      const std::string what =
          fmt::format("output {} {} \"{}\"", i, to_string(output.role), output.name);
      if (output.value >= graph_.values().size()) return invalid_plan(what + " is no value");
      if (!outputs[static_cast<size_t>(output.role)].emplace(output.name, output.value).second) {
        return invalid_plan(what + ": the role has another output of this name");
      }
      if (const OpId by = storage_.overwritten_by(output.value); by != kNoOp) {
        return invalid_plan(fmt::format("{}: %{} was updated in place by {}", what, output.value,
                                        op_name(graph_, by)));
      }
      SGA_TRY(check_state(output, what));
    }
    return {};
  }

  /// State goes out as it came in: parameters, moments and accumulators keep their type.
  Status check_state(const GraphOutput& output, const std::string& what) const {
    if (output.role > Role::kAccumulator) return {};
    const Names& inputs = inputs_[static_cast<size_t>(output.role)];
    const auto input = inputs.find(output.name);
    if (input == inputs.end() || graph_.type(input->second) == graph_.type(output.value)) return {};
    return invalid_plan(fmt::format("{} is {}, but the input of this name is {}", what,
                                    graph_.type(output.value).to_string(),
                                    graph_.type(input->second).to_string()));
  }

  const Graph& graph_;
  Storage storage_;
  std::array<Names, kNumRoles> inputs_;
  std::vector<TensorType> operand_types_;
  size_t num_defined_ = 0;
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace sgactor::graph
