#include "graph/passes/differentiate.h"

#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/passes/rewrite.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

class Differentiator {
 public:
  explicit Differentiator(const Graph& forward)
      : graph_(forward),
        builder_(graph_),
        num_forward_ops_(forward.ops().size()),
        gradients_(forward.values().size(), kNoValue) {}

  Result<Graph> run();

 private:
  /// Gradient of one use of a parameter.
  struct Use {
    uint32_t input = 0;  // index into inputs()
    OpId op = kNoOp;
    size_t operand = 0;
    ValueId gradient = kNoValue;
  };

  Result<ValueId> find_loss() const;
  void mark_active();
  Status differentiate_op(OpId id);
  void add_gradient(ValueId v, ValueId gradient);
  void output_gradients();
  [[nodiscard]] bool is_parameter(ValueId v) const {
    const Value& value = graph_.value(v);
    return value.producer == kNoOp && graph_.inputs()[value.result].role == Role::kParameter;
  }

  Graph graph_;
  Builder builder_;
  size_t num_forward_ops_;
  std::vector<bool> active_;        // of forward values: depends on a parameter
  std::vector<ValueId> gradients_;  // of forward values that are no parameters: sum so far
  std::vector<Use> uses_;
};

Result<ValueId> Differentiator::find_loss() const {
  ValueId loss = kNoValue;
  for (const GraphOutput& output : graph_.outputs()) {
    if (output.role != Role::kLoss) continue;
    if (loss != kNoValue) return invalid_plan("the graph has more than one loss output");
    loss = output.value;
  }
  if (loss == kNoValue) return invalid_plan("the graph has no loss output");
  const TensorType& type = graph_.type(loss);
  if (!is_float(type.dtype) || type.shape.rank() != 0) {
    return invalid_plan(fmt::format("the loss is {}, expected a float scalar", type.to_string()));
  }
  if (!active_[loss] || graph_.value(loss).producer == kNoOp) {
    return invalid_plan("the loss does not depend on a parameter through any op");
  }
  return loss;
}

void Differentiator::mark_active() {
  active_.assign(graph_.values().size(), false);
  for (const GraphInput& input : graph_.inputs()) {
    active_[input.value] =
        input.role == Role::kParameter && is_float(graph_.type(input.value).dtype);
  }
  for (const Op& op : graph_.ops()) {
    const bool any =
        std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return active_[v]; });
    for (ValueId v : op.results) active_[v] = any && is_float(graph_.type(v).dtype);
  }
}

void Differentiator::add_gradient(ValueId v, ValueId gradient) {
  // The running sum is added to in the segment that contributes, so that one value, not one a use,
  // crosses from segment to segment.
  ValueId& sum = gradients_[v];
  sum = sum == kNoValue ? gradient : builder_.add(sum, gradient);
}

Status Differentiator::differentiate_op(OpId id) {
  const Op op = graph_.op(id);  // a copy: the rule appends to the graph
  std::vector<ValueId> result_grads;
  bool reached = false;
  for (ValueId v : op.results) {
    result_grads.push_back(gradients_[v]);
    reached = reached || gradients_[v] != kNoValue;
  }
  const bool wanted =
      std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return active_[v]; });
  if (!reached || !wanted) return {};
  const OpInfo& info = op_info(op.kind);
  if (info.gradient == nullptr) {
    return invalid_plan(
        fmt::format("op {} {} is on the path to the loss and has no gradient", id, info.name));
  }
  std::vector<ValueId> operand_grads(op.operands.size(), kNoValue);
  builder_.set_segment(op.segment);
  info.gradient(builder_, op, result_grads, operand_grads);
  SGA_TRY(builder_.status().with_context(fmt::format("gradient of op {} {}", id, info.name)));
  for (size_t j = 0; j < op.operands.size(); ++j) {
    const ValueId v = op.operands[j];
    if (operand_grads[j] == kNoValue || !active_[v]) continue;
    if (graph_.type(operand_grads[j]) != graph_.type(v)) {
      return invalid_plan(fmt::format("gradient of op {} {}, operand {}, is {}, expected {}", id,
                                      info.name, j, graph_.type(operand_grads[j]).to_string(),
                                      graph_.type(v).to_string()));
    }
    if (is_parameter(v)) {
      uses_.push_back({graph_.value(v).result, id, j, operand_grads[j]});
    } else {
      add_gradient(v, operand_grads[j]);
    }
  }
  return builder_.status();
}

void Differentiator::output_gradients() {
  std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
    return std::tie(a.input, a.op, a.operand) < std::tie(b.input, b.op, b.operand);
  });
  int number = 0;
  for (size_t i = 0; i < uses_.size(); ++i) {
    number = i > 0 && uses_[i - 1].input == uses_[i].input ? number + 1 : 0;
    const std::string& parameter = graph_.inputs()[uses_[i].input].name;
    builder_.output(
        uses_[i].gradient, Role::kAccumulator,
        number == 0 ? "grad/" + parameter : fmt::format("grad/{}#{}", parameter, number));
  }
}

Result<Graph> Differentiator::run() {
  mark_active();
  SGA_ASSIGN(const ValueId loss, find_loss());
  builder_.set_phase(Phase::kBackward);
  builder_.set_segment(graph_.op(graph_.value(loss).producer).segment);
  gradients_[loss] = builder_.constant(1.0, graph_.type(loss));
  SGA_TRY(builder_.status());
  for (size_t o = num_forward_ops_; o-- > 0;) SGA_TRY(differentiate_op(static_cast<OpId>(o)));
  output_gradients();
  SGA_TRY(builder_.status());
  return clean_graph(graph_);
}

}  // namespace

Result<Graph> differentiate(const Graph& forward) {
  for (const Op& op : forward.ops()) {
    if (op.phase != Phase::kForward) {
      return invalid_plan("differentiate needs a forward graph, found an op of phase " +
                          std::string(to_string(op.phase)));
    }
  }
  return Differentiator(forward).run();
}

}  // namespace sgactor::graph
