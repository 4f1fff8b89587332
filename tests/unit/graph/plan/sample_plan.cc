#include "tests/unit/graph/plan/sample_plan.h"

#include "graph/ir/builder.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"

namespace sgactor::graph {
namespace {

Result<Graph> build_forward() {
  Graph graph;
  graph.name = "sample";
  Builder b(graph);
  const ValueId embed = b.input({DType::kF32, {8, 16}}, Role::kParameter, "embed");
  const ValueId w0 = b.input({DType::kF32, {16, 16}}, Role::kParameter, "w.0");
  const ValueId w1 = b.input({DType::kF32, {16, 16}}, Role::kParameter, "w.1");
  const ValueId tokens = b.input({DType::kI32, {6}}, Role::kTokens, "tokens");
  const ValueId targets = b.input({DType::kI32, {6}}, Role::kTargets, "targets");
  const ValueId inv = b.input({DType::kF32, {}}, Role::kScalar, "inv_valid_tokens");
  b.set_segment("embed");
  ValueId h = b.gather(embed, tokens);
  for (const auto& [segment, w] : {std::pair("layer.0", w0), std::pair("layer.1", w1)}) {
    b.set_segment(segment);
    const ValueId x = b.matmul(h, w);
    h = b.add(h, b.silu(x));
  }
  b.set_segment("head");
  const ValueId logits = b.matmul(h, embed, false, true);
  const auto [sum, lse] = b.cross_entropy(logits, targets);
  b.output(b.mul(sum, inv), Role::kLoss, "loss");
  SGA_TRY(b.status());
  return graph;
}

Result<Plan> build_plan() {
  SGA_ASSIGN(Graph training, build_forward());
  SGA_ASSIGN(training, differentiate(training));
  SGA_ASSIGN(training, accumulate_microbatches(training));
  std::vector<ParameterSpec> specs;
  for (const GraphInput& input : training.inputs()) {
    if (input.role == Role::kParameter) specs.push_back({input.name, training.type(input.value)});
  }
  SGA_ASSIGN(const auto parameters, collect_update_parameters(training, specs));
  SGA_ASSIGN(const Graph update, build_update(parameters, {}));
  SGA_ASSIGN(Plan plan, partition_subgraphs(training, update, 2, StorageModel::kNative));
  SGA_TRY(plan_memory(plan, 64));
  return plan;
}

}  // namespace

Plan sample_plan() {
  Result<Plan> plan = build_plan();
  SGA_CHECK(plan.ok(), plan.status().to_string());
  return std::move(plan).value();
}

LaunchId find_launch(const Plan& plan, std::string_view name) {
  const auto& launches = plan.programs[0].launches;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].name == name) return static_cast<LaunchId>(i);
  }
  SGA_CHECK(false, "no launch " + std::string(name));
}

BufferId find_buffer(const Plan& plan, std::string_view name) {
  const auto& buffers = plan.programs[0].buffers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name == name) return static_cast<BufferId>(i);
  }
  SGA_CHECK(false, "no buffer " + std::string(name));
}

}  // namespace sgactor::graph
