// A whole Llama, cut along tp, against the graph that is not cut: loss and every gradient, in
// float64 on the reference kernels, all ranks in lock step.
#include "graph/ir/verify.h"
#include "graph/passes/differentiate.h"
#include "kernels/reference/reference_backend.h"
#include "tests/unit/graph/passes/tiny_model.h"
#include "tests/unit/graph/sharding/sharded_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace sgactor::testing {
namespace {

using graph::Graph;
using graph::LlamaConfig;

struct Model {
  const char* name;
  LlamaConfig config;
  bool accumulate = false;
};

LlamaConfig model(bool tied, int64_t groups, int64_t vocab, bool bias = false) {
  LlamaConfig c = graph::tiny_config(tied, false);
  c.num_hidden_layers = 2;
  c.num_key_value_heads = groups;
  c.vocab_size = vocab;
  c.attention_bias = bias;
  if (bias) c.model_type = "qwen2";
  return c;
}

LlamaConfig llama_bias() {
  LlamaConfig c = model(true, 4, 16, true);
  c.model_type = "llama";
  c.attention_output_bias = true;
  return c;
}

/// 8 heads in 4 groups, so that 4 ranks have 2 heads and 1 group each; 13 of 14 intermediate
/// columns do not divide.
LlamaConfig grouped() {
  LlamaConfig c = model(false, 4, 13);
  c.num_attention_heads = 8;
  c.intermediate_size = 13;
  return c;
}

std::vector<Model> models() {
  return {{"tied", model(true, 4, 16)},
          {"untied", model(false, 4, 16)},
          {"qwen2_bias", model(true, 4, 16, true)},
          {"llama_bias", llama_bias()},
          {"grouped", grouped()},
          {"odd_vocabulary", model(true, 4, 13)},
          {"vocabulary_smaller_than_padding", model(false, 4, 5)},
          {"accumulated", model(true, 4, 13), true}};
}

constexpr graph::ForwardOptions kForward = {2, 5, true};

RankNumbers inputs_of(const Graph& training, const LlamaConfig& config) {
  const graph::Values state = graph::random_state(config, 3);
  const graph::Values batch = graph::random_batch(config, kForward, 4);
  RankNumbers numbers;
  for (const graph::GraphInput& input : training.inputs()) {
    const auto in_state = state.find(input.name);
    const auto in_batch = batch.find(input.name);
    if (in_state != state.end()) {
      numbers.push_back(in_state->second);
    } else if (in_batch != batch.end()) {
      numbers.push_back(in_batch->second);
    } else {
      numbers.emplace_back(static_cast<size_t>(training.type(input.value).num_elements()), 0.25);
    }
  }
  return numbers;
}

class ShardedLlama : public ::testing::TestWithParam<std::tuple<size_t, int32_t>> {
 protected:
  void SetUp() override {
    const Model m = models()[std::get<0>(GetParam())];
    config_ = m.config;
    members_ = std::get<1>(GetParam());
    Result<Graph> training = graph::differentiate(*graph::build_llama(config_, kForward));
    ASSERT_TRUE(training.ok()) << training.status().to_string();
    if (m.accumulate) training = graph::accumulate_microbatches(*training);
    ASSERT_TRUE(training.ok()) << training.status().to_string();
    training_ = *training;
    options_.members = members_;
    options_.rules =
        graph::llama_parameter_rules(config_.num_attention_heads, config_.num_key_value_heads);
  }

  LlamaConfig config_;
  int32_t members_ = 1;
  Graph training_;
  graph::ShardingOptions options_;
};

TEST_P(ShardedLlama, LossAndGradientsAreTheWholeGraphs) {
  const Result<graph::ShardingDecisions> decisions = graph::apply_sharding(training_, options_);
  ASSERT_TRUE(decisions.ok()) << decisions.status().to_string();
  const Result<graph::ShardedTraining> sharded =
      graph::insert_collectives(training_, *decisions, options_);
  ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
  ASSERT_TRUE(graph::verify(sharded->graph).ok());

  const RankNumbers numbers = inputs_of(training_, config_);
  const Result<RankNumbers> expected = kernels::run_reference(training_, numbers);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  const Result<std::vector<RankNumbers>> ranks =
      run_mesh(sharded->graph, {{"tp", members_}},
               split_inputs(training_, sharded->graph, decisions->inputs, numbers, members_));
  ASSERT_TRUE(ranks.ok()) << ranks.status().to_string();
  ASSERT_EQ(training_.outputs().size(), sharded->graph.outputs().size());
  for (size_t i = 0; i < training_.outputs().size(); ++i) {
    const graph::GraphOutput& output = training_.outputs()[i];
    SCOPED_TRACE(output.name);
    EXPECT_EQ(sharded->graph.outputs()[i].name, output.name);
    ASSERT_FALSE(std::isnan((*expected)[i][0]));
    expect_near(join(output_of(*ranks, i), training_.type(output.value), decisions->outputs[i]),
                (*expected)[i], 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShardedLlama,
                         ::testing::Combine(::testing::Range(size_t{0}, models().size()),
                                            ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::string(models()[std::get<0>(info.param)].name) + "_tp" +
                                  std::to_string(std::get<1>(info.param));
                         });

/// The test above would be blind if gradients were the same whatever the graph did.
TEST(ShardedLlamaCheck, ALostAllReduceIsFound) {
  const LlamaConfig config = model(true, 4, 16);
  const Graph training = *graph::differentiate(*graph::build_llama(config, kForward));
  const graph::ShardingOptions options{.members = 2, .rules = graph::llama_parameter_rules(4, 4)};
  graph::ShardingDecisions decisions = *graph::apply_sharding(training, options);
  Graph broken = graph::insert_collectives(training, decisions, options)->graph;
  const RankNumbers numbers = inputs_of(training, config);
  const auto inputs = split_inputs(training, broken, decisions.inputs, numbers, 2);
  int found = 0;
  int tried = 0;
  const std::vector<RankNumbers> right = *run_mesh(broken, {{"tp", 2}}, inputs);
  for (graph::OpId o = 0; o < broken.ops().size(); ++o) {
    if (broken.op(o).kind != graph::OpKind::kAllReduce) continue;
    const graph::Attrs attrs = broken.op(o).attrs;
    const bool sum = attrs.text("reduce") == "sum";
    broken.mutable_op(o).attrs.set("reduce", std::string(sum ? "max" : "sum"));
    const std::vector<RankNumbers> wrong = *run_mesh(broken, {{"tp", 2}}, inputs);
    // A sum of maxima is still a shift of the powers that cancels, so only sums must show.
    if (sum) ++tried;
    if (sum && wrong != right) ++found;
    broken.mutable_op(o).attrs = attrs;
  }
  EXPECT_GT(tried, 8);
  EXPECT_EQ(found, tried);
}

}  // namespace
}  // namespace sgactor::testing
