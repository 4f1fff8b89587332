#include "graph/ir/builder.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/partition_prepare.h"
#include "graph/passes/rewrite.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

namespace sgactor::graph {
namespace {

constexpr std::string_view kGradient = "grad/";

bool is_summed(const Graph& graph, const GraphOutput& output) {
  if (output.role == Role::kLoss) return true;
  if (output.role != Role::kAccumulator) return false;
  // What a reduce_scatter makes has no rank's own sum behind it: there is one micro-batch, and the
  // accumulator is the result itself.
  const OpId producer = graph.value(output.value).producer;
  return producer == kNoOp || graph.op(producer).kind != OpKind::kReduceScatter;
}
std::string accumulator_name(const GraphOutput& output) {
  return output.role == Role::kLoss ? "loss" : output.name;
}

Status check_output(const Graph& graph, const GraphOutput& output) {
  const std::string name = accumulator_name(output);
  if (graph.find_input(Role::kAccumulator, name) != kNoValue) {
    return invalid_plan("\"" + name + "\" is accumulated already");
  }
  if (graph.value(output.value).producer == kNoOp) {
    return invalid_plan("output \"" + name + "\" is an input of the graph, nothing computes it");
  }
  if (!is_float(graph.type(output.value).dtype)) {
    return invalid_plan(fmt::format("output \"{}\" is {}, expected a float type", name,
                                    graph.type(output.value).to_string()));
  }
  return {};
}

/// For each output: the one that it is added to where both are made, or itself.
std::vector<size_t> find_sums(const Graph& graph, const SumOptions& options) {
  const auto& outputs = graph.outputs();
  std::vector<size_t> sums;
  std::map<std::string_view, std::vector<size_t>> uses;  // by parameter
  for (size_t i = 0; i < outputs.size(); ++i) {
    sums.push_back(i);
    const std::string_view name = outputs[i].name;
    if (is_summed(graph, outputs[i])) uses[name.substr(0, name.find('#'))].push_back(i);
  }
  if (!options.one_micro_batch || !options.one_stage) return sums;
  for (const auto& [parameter, of] : uses) {
    // Of two, either may be added to the other; three have an order.
    if (of.size() != 2 || outputs[of[0]].name != parameter) continue;
    const TensorType& first = graph.type(outputs[of[0]].value);
    const TensorType& second = graph.type(outputs[of[1]].value);
    const OpId last = graph.value(outputs[of[0]].value).producer;
    const OpId before = graph.value(outputs[of[1]].value).producer;
    if (last == kNoOp || before == kNoOp) continue;
    if (first.shape != second.shape || before >= last) continue;
    if (piece_of(graph.op(before)) <= piece_of(graph.op(last))) sums[of[1]] = of[0];
  }
  return sums;
}

class Accumulation {
 public:
  Accumulation(const Graph& training, const SumOptions& options)
      : training_(training),
        options_(options),
        sums_(find_sums(training, options)),
        copier_(training),
        builder_(copier_.graph()),
        values_(training.outputs().size(), kNoValue),
        squares_(training.outputs().size(), kNoValue),
        ready_(training.ops().size()) {}

  Result<Graph> run() {
    const auto& outputs = training_.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) SGA_TRY(start(i));
    for (OpId o = 0; o < training_.ops().size(); ++o) {
      copier_.copy(o);
      // Right behind the op that makes the gradient, so that the gradient dies at once.
      builder_.set_phase(training_.op(o).phase);
      builder_.set_segment(training_.op(o).segment);
      for (size_t i : ready_[o]) add(i);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (sums_[i] != i) continue;
      if (values_[i] != kNoValue) {
        builder_.output(values_[i], Role::kAccumulator, accumulator_name(outputs[i]));
      } else {
        builder_.output(copier_[outputs[i].value], outputs[i].role, outputs[i].name);
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (squares_[i] == kNoValue) continue;
      builder_.output(squares_[i], Role::kAccumulator,
                      squares_name(outputs[i].name.substr(kGradient.size())));
    }
    SGA_TRY(builder_.status());
    return copier_.take();
  }

 private:
  Status start(size_t i) {
    const GraphOutput& output = training_.outputs()[i];
    if (!is_summed(training_, output)) return {};
    SGA_TRY(check_output(training_, output));
    ready_[training_.value(output.value).producer].push_back(i);
    if (options_.one_micro_batch) return {};
    values_[i] = builder_.input(sum_type(output), Role::kAccumulator, accumulator_name(output));
    return {};
  }

  [[nodiscard]] TensorType sum_type(const GraphOutput& output) const {
    TensorType type = training_.type(output.value);
    if (type.dtype != DType::kF64) type.dtype = DType::kF32;
    return type;
  }

  void add(size_t i) {
    const GraphOutput& output = training_.outputs()[i];
    ValueId& sum = values_[sums_[i]];
    if (sum == kNoValue) sum = builder_.constant(0, sum_type(output));
    sum = builder_.accumulate(sum, copier_[output.value]);
    if (sums_[i] != i || !is_whole(i) || builder_.type(sum).dtype != DType::kF32) return;
    Attrs attrs;
    attrs.set("chunk", options_.norm_chunk);
    squares_[i] = builder_.op1(OpKind::kSumSquares, {sum}, attrs);
  }

  /// Whether output `i`, whose sum is complete, is all of its parameter's gradient, and its norm
  /// is wanted here.
  [[nodiscard]] bool is_whole(size_t i) const {
    const auto& outputs = training_.outputs();
    const std::string& name = outputs[i].name;
    if (!options_.one_micro_batch || options_.norm_chunk == 0) return false;
    if (!name.starts_with(kGradient) || name.find('#') != name.npos) return false;
    if (goes_with_loss(outputs[i].value)) return false;
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (outputs[k].name.starts_with(name + "#") && sums_[k] != i) return false;
    }
    return true;
  }

  /// fuse_ops makes what comes of logits with the loss, in the forward pass: a reader in the
  /// backward pass would be another subgraph.
  [[nodiscard]] bool goes_with_loss(ValueId v) const {
    for (ValueId operand : training_.op(training_.value(v).producer).operands) {
      const OpId from = training_.value(operand).producer;
      if (from != kNoOp && training_.op(from).kind == OpKind::kCrossEntropyGrad) return true;
    }
    return false;
  }

  const Graph& training_;
  const SumOptions options_;
  const std::vector<size_t> sums_;
  GraphCopier copier_;
  Builder builder_;
  std::vector<ValueId> values_;             // by output: its sum so far
  std::vector<ValueId> squares_;            // by output: chunk sums, where wanted
  std::vector<std::vector<size_t>> ready_;  // by producer: outputs
};

}  // namespace

Result<Graph> accumulate_microbatches(const Graph& training, const SumOptions& options) {
  return Accumulation(training, options).run();
}

}  // namespace sgactor::graph
