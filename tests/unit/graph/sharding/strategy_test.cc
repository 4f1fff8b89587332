// What apply_sharding chooses, and what it refuses.
#include "graph/ir/op_table.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/insert_collectives.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace sgactor::graph {
namespace {

constexpr ForwardOptions kForward = {2, 5, true};

ShardingOptions options_for(const LlamaConfig& c, int32_t members) {
  return {.members = members,
          .rules = llama_parameter_rules(c.num_attention_heads, c.num_key_value_heads)};
}

Graph training_of(const LlamaConfig& c, const ForwardOptions& forward = kForward) {
  return *differentiate(*build_llama(c, forward));
}

std::map<std::string, int> count_collectives(const Graph& g, Phase phase) {
  std::map<std::string, int> counts;
  for (const Op& op : g.ops()) {
    if (!op_info(op.kind).communicates || op.phase != phase) continue;
    const std::string segment = g.segments()[static_cast<size_t>(op.segment)];
    ++counts[segment + " " + std::string(op_info(op.kind).name)];
  }
  return counts;
}
using Counts = std::map<std::string, int>;

/// Megatron-LM's count: two all-reduces a layer each way, one behind the embedding, two for the
/// loss, one in front of the last norm's gradient; at tiny and at large batches, whatever is
/// cheaper to move.
TEST(ApplySharding, ALlamaCommunicatesAsMegatronDoes) {
  for (const auto& [batch, seq_len] : {std::pair<int64_t, int64_t>{1, 2}, {2, 5}, {16, 512}}) {
    LlamaConfig c = tiny_config(true, true);
    c.num_hidden_layers = 2;
    const ForwardOptions forward = {batch, seq_len, true};
    const Result<ShardedTraining> sharded =
        shard_training(training_of(c, forward), options_for(c, 2));
    ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
    EXPECT_EQ(count_collectives(sharded->graph, Phase::kForward), (Counts{{"embed all_reduce", 1},
                                                                          {"layer.0 all_reduce", 2},
                                                                          {"layer.1 all_reduce", 2},
                                                                          {"head all_reduce", 2}}));
    EXPECT_EQ(
        count_collectives(sharded->graph, Phase::kBackward),
        (Counts{{"layer.0 all_reduce", 2}, {"layer.1 all_reduce", 2}, {"head all_reduce", 1}}));
  }
}

TEST(ApplySharding, ParametersAreCutByTheTable) {
  LlamaConfig c = tiny_config(false, true);
  c.vocab_size = 13;
  c.attention_bias = true;
  const Result<ShardedTraining> sharded = shard_training(training_of(c), options_for(c, 2));
  ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
  std::map<std::string, std::pair<int32_t, Shape>> cut;
  for (const ParameterSharding& p : sharded->parameters) {
    cut[p.name] = {p.tp_dim, p.local.shape};
    const ValueId input = sharded->graph.find_input(Role::kParameter, p.name);
    ASSERT_NE(input, kNoValue);
    EXPECT_EQ(sharded->graph.type(input), p.local);
    const ValueId grad = sharded->graph.find_output(Role::kAccumulator, "grad/" + p.name);
    ASSERT_NE(grad, kNoValue) << p.name;
    EXPECT_EQ(sharded->graph.type(grad).shape, p.local.shape);
  }
  using Cut = std::pair<int32_t, Shape>;
  EXPECT_EQ(cut.at("model.embed_tokens.weight"), (Cut{0, {7, 8}}));
  EXPECT_EQ(cut.at("lm_head.weight"), (Cut{0, {7, 8}}));
  EXPECT_EQ(cut.at("model.layers.1.self_attn.q_proj.weight"), (Cut{0, {4, 8}}));
  EXPECT_EQ(cut.at("model.layers.1.self_attn.q_proj.bias"), (Cut{0, {4}}));
  EXPECT_EQ(cut.at("model.layers.1.self_attn.k_proj.weight"), (Cut{0, {2, 8}}));
  EXPECT_EQ(cut.at("model.layers.1.self_attn.o_proj.weight"), (Cut{1, {8, 4}}));
  EXPECT_EQ(cut.at("model.layers.1.mlp.gate_proj.weight"), (Cut{0, {6, 8}}));
  EXPECT_EQ(cut.at("model.layers.1.mlp.down_proj.weight"), (Cut{1, {8, 6}}));
  EXPECT_EQ(cut.at("model.norm.weight"), (Cut{-1, {8}}));
  EXPECT_EQ(cut.size(), sharded->graph.inputs().size() - 4);  // tokens, targets, two scalars
}

TEST(ApplySharding, LayersStayAlike) {
  LlamaConfig c = tiny_config(true, false);
  const Graph sharded = shard_training(training_of(c), options_for(c, 4))->graph;
  std::map<std::string, std::vector<OpKind>> layers;
  for (const Op& op : sharded.ops()) {
    layers[sharded.segments()[static_cast<size_t>(op.segment)]].push_back(op.kind);
  }
  EXPECT_EQ(layers.at("layer.0"), layers.at("layer.1"));
  EXPECT_EQ(layers.at("layer.1"), layers.at("layer.2"));
}

TEST(ApplySharding, HeadsThatDoNotDivideAreNamed) {
  const LlamaConfig c = tiny_config(true, true);  // 4 heads in 2 groups
  const Status three = shard_training(training_of(c), options_for(c, 3)).status();
  EXPECT_EQ(three.code(), Code::kInvalidArgument);
  EXPECT_NE(three.message().find("4 attention heads do not divide over the 3 ranks"),
            std::string::npos)
      << three.message();
  const Status four = shard_training(training_of(c), options_for(c, 4)).status();
  EXPECT_EQ(four.code(), Code::kInvalidArgument);
  EXPECT_NE(four.message().find("2 key/value heads do not divide over the 4 ranks"),
            std::string::npos)
      << four.message();
}

TEST(ApplySharding, ARuleMustFitItsParameter) {
  const LlamaConfig c = tiny_config(true, true);
  ShardingOptions options{.members = 2, .rules = {{"*norm.weight", 1, 0, ""}}};
  const Status status = shard_training(training_of(c), options).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("norm.weight"), std::string::npos) << status.message();
  options.members = 0;
  EXPECT_EQ(shard_training(training_of(c), options).status().code(), Code::kInvalidArgument);
}

TEST(ApplySharding, WithoutRulesOrWithOneRankNothingChanges) {
  const LlamaConfig c = tiny_config(true, true);
  const Graph training = training_of(c);
  EXPECT_EQ(shard_training(training, options_for(c, 1))->graph, training);
  const Result<ShardedTraining> whole = shard_training(training, {.members = 4, .rules = {}});
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ(whole->graph, training);
}

TEST(ApplySharding, FusedOpsAreRefusedByName) {
  Graph g;
  g.add_input({DType::kF32, Shape{4}}, Role::kActivation, "x");
  const OpId op = g.add_op(OpKind::kSwiglu, {0, 0}, {}, {{DType::kF32, Shape{4}}}, Phase::kForward,
                           g.segment_index("s"));
  g.add_output(g.op(op).results[0], Role::kActivation, "y");
  const Status status = shard_training(g, {.members = 2, .rules = {}}).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("swiglu"), std::string::npos) << status.message();
}

TEST(ApplySharding, ForwardGraphsGiveWholeLogits) {
  LlamaConfig c = tiny_config(true, false);
  const Graph forward = *build_llama(c, {1, 4, false});
  const Result<ShardedTraining> sharded = shard_training(forward, options_for(c, 2));
  ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
  const ValueId logits = sharded->graph.find_output(Role::kLogits, "logits");
  EXPECT_EQ(sharded->graph.type(logits).shape, (Shape{1, 4, 13}));
}

TEST(ApplySharding, ExplainsCutsAndConversions) {
  const LlamaConfig c = tiny_config(true, true);
  const Graph training = training_of(c);
  const std::vector<std::string> lines =
      explain_sharding(training, *apply_sharding(training, options_for(c, 2)));
  const auto has = [&](const std::string& text) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(has("model.embed_tokens.weight: dim 0 cut, f32[7, 8] a rank"));
  EXPECT_TRUE(has("gather: (S(0), R) -> (P)"));
  EXPECT_TRUE(has("cross_entropy: (S(1), R) -> (R, R)"));
}

}  // namespace
}  // namespace sgactor::graph
