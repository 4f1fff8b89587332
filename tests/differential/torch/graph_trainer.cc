#include "tests/differential/torch/graph_trainer.h"

#include "graph/ir/verify.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "kernels/reference/reference_backend.h"

namespace sgactor::differential {

using graph::Graph;
using graph::GraphInput;
using graph::Role;

Result<GraphTrainer> GraphTrainer::create(const ParityFixture& fixture) {
  GraphTrainer t(fixture);
  SGA_ASSIGN(const Graph forward,
             graph::build_llama(fixture.config, {fixture.batch, fixture.seq_len, true}));
  SGA_ASSIGN(const Graph differentiated, graph::differentiate(forward));
  SGA_ASSIGN(t.training_, graph::accumulate_microbatches(differentiated));
  SGA_ASSIGN(const auto parameters, graph::collect_update_parameters(
                                        t.training_, graph::llama_parameters(fixture.config)));
  SGA_ASSIGN(t.update_, graph::build_update(parameters, fixture.optimizer));
  SGA_TRY(graph::verify(t.training_));
  SGA_TRY(graph::verify(t.update_));
  SGA_TRY(t.load_state());
  return t;
}

Status GraphTrainer::load_state() {
  for (const GraphInput& input : update_.inputs()) {
    const TensorType& type = update_.type(input.value);
    std::vector<float> values(static_cast<size_t>(type.num_elements()));
    if (input.role == Role::kParameter) {
      SGA_TRY(fixture_->start->load(input.name, type, std::as_writable_bytes(std::span(values))));
    }
    state_[input.name].assign(values.begin(), values.end());
  }
  return {};
}

Status GraphTrainer::run(const Graph& graph) {
  std::vector<std::vector<double>> inputs;
  for (const GraphInput& input : graph.inputs()) inputs.push_back(state_.at(input.name));
  SGA_ASSIGN(auto outputs, kernels::run_reference(graph, inputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    state_[graph.outputs()[i].name] = std::move(outputs[i]);
  }
  return {};
}

Status GraphTrainer::step(int64_t step) {
  for (const GraphInput& input : training_.inputs()) {
    if (input.role != Role::kAccumulator) continue;
    const int64_t size = training_.type(input.value).num_elements();
    state_[input.name].assign(static_cast<size_t>(size), 0.0);
  }
  state_["step"] = {static_cast<double>(step)};
  state_["inv_valid_tokens"] = {1.0 / static_cast<double>(fixture_->valid_tokens(step))};
  for (int64_t m = 0; m < fixture_->num_micro_batches; ++m) {
    const auto slice = [&](const std::vector<int32_t>& ids) {
      const auto begin = ids.begin() + static_cast<int64_t>(fixture_->offset(step, m));
      return std::vector<double>(begin, begin + static_cast<int64_t>(fixture_->micro_batch_size()));
    };
    state_["tokens"] = slice(fixture_->tokens);
    state_["targets"] = slice(fixture_->targets);
    SGA_TRY(run(training_));
  }
  return run(update_);
}

}  // namespace sgactor::differential
