#include "graph/ir/verify.h"
#include "kernels/reference/kernels.h"
#include "kernels/reference/reference_backend.h"

#include <utility>

namespace sgactor::kernels {
namespace {

using reference::Tensor;

void fill_input(const Tensor& to, const std::vector<double>& values) {
  for (int64_t i = 0; i < to.size(); ++i) {
    const double value = values[static_cast<size_t>(i)];
    if (is_float(to.type->dtype)) {
      to.f64()[i] = value;
    } else {
      to.i64()[i] = static_cast<int64_t>(value);
    }
  }
}

std::vector<double> read_output(const Tensor& from) {
  std::vector<double> values;
  for (int64_t i = 0; i < from.size(); ++i) {
    values.push_back(is_float(from.type->dtype) ? from.f64()[i]
                                                : static_cast<double>(from.i64()[i]));
  }
  return values;
}

Status check_inputs(const graph::Graph& graph, const std::vector<std::vector<double>>& inputs) {
  if (inputs.size() != graph.inputs().size()) {
    return invalid_argument("graph takes " + std::to_string(graph.inputs().size()) +
                            " inputs, not " + std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorType& type = graph.type(graph.inputs()[i].value);
    if (static_cast<int64_t>(inputs[i].size()) == type.num_elements()) continue;
    return invalid_argument("input " + std::to_string(i) + " '" + graph.inputs()[i].name + "' is " +
                            type.to_string() + ", not " + std::to_string(inputs[i].size()) +
                            " numbers");
  }
  return {};
}

}  // namespace

Result<std::vector<std::vector<double>>> run_reference(
    const graph::Graph& graph, const std::vector<std::vector<double>>& inputs) {
  SGA_TRY(graph::verify(graph));
  SGA_TRY(check_inputs(graph, inputs));
  // Every value has storage of its own: nothing is shared, nothing in place.
  std::vector<std::vector<double>> storage;
  std::vector<Tensor> tensors;
  for (const graph::Value& value : graph.values()) {
    storage.emplace_back(static_cast<size_t>(value.type.num_elements()));
    tensors.push_back({&value.type, reinterpret_cast<std::byte*>(storage.back().data())});
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    fill_input(tensors[graph.inputs()[i].value], inputs[i]);
  for (const graph::Op& op : graph.ops()) {
    std::vector<Tensor> operands;
    std::vector<Tensor> results;
    for (graph::ValueId v : op.operands) operands.push_back(tensors[v]);
    for (graph::ValueId v : op.results) results.push_back(tensors[v]);
    SGA_TRY(reference::run_op(op, operands, results));
  }
  std::vector<std::vector<double>> outputs;
  for (const graph::GraphOutput& output : graph.outputs())
    outputs.push_back(read_output(tensors[output.value]));
  return outputs;
}

}  // namespace sgactor::kernels
