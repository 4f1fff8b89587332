#include "graph/ir/builder.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/rewrite.h"

#include <fmt/format.h>

namespace sgactor::graph {
namespace {

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

}  // namespace

Result<Graph> accumulate_microbatches(const Graph& training) {
  GraphCopier copier(training);
  Builder builder(copier.graph());
  const auto& outputs = training.outputs();
  std::vector<ValueId> accumulators(outputs.size(), kNoValue);
  std::vector<std::vector<size_t>> ready(training.ops().size());  // by producer: outputs
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_summed(training, outputs[i])) continue;
    SGA_TRY(check_output(training, outputs[i]));
    TensorType type = training.type(outputs[i].value);
    if (type.dtype != DType::kF64) type.dtype = DType::kF32;
    accumulators[i] = builder.input(type, Role::kAccumulator, accumulator_name(outputs[i]));
    ready[training.value(outputs[i].value).producer].push_back(i);
  }
  for (OpId o = 0; o < training.ops().size(); ++o) {
    copier.copy(o);
    // Right behind the op that makes the gradient, so that the gradient dies at once.
    builder.set_phase(training.op(o).phase);
    builder.set_segment(training.op(o).segment);
    for (size_t i : ready[o]) {
      accumulators[i] = builder.accumulate(accumulators[i], copier[outputs[i].value]);
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (accumulators[i] != kNoValue) {
      builder.output(accumulators[i], Role::kAccumulator, accumulator_name(outputs[i]));
    } else {
      builder.output(copier[outputs[i].value], outputs[i].role, outputs[i].name);
    }
  }
  SGA_TRY(builder.status());
  return copier.take();
}

}  // namespace sgactor::graph
