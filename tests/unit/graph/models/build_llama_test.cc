#include "graph/ir/verify.h"
#include "graph/models/llama.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

LlamaConfig small() {
  LlamaConfig c = *llama_preset("llama-tiny");
  c.num_hidden_layers = 2;
  c.num_key_value_heads = 2;
  return c;
}

int64_t count(const Graph& graph, OpKind kind, const std::string& segment) {
  return std::count_if(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
    return op.kind == kind && graph.segments()[static_cast<size_t>(op.segment)] == segment;
  });
}

TEST(BuildLlama, EveryFamilyMemberVerifies) {
  for (const bool tied : {true, false}) {
    for (const int bias : {0, 1, 2}) {
      for (const bool loss : {true, false}) {
        LlamaConfig c = small();
        c.tie_word_embeddings = tied;
        c.attention_bias = bias > 0;
        c.attention_output_bias = bias > 1;
        const auto graph = build_llama(c, {3, 16, loss});
        ASSERT_TRUE(graph.ok()) << graph.status().to_string();
        const Status s = verify(*graph);
        EXPECT_TRUE(s.ok()) << s.to_string();
      }
    }
  }
}

TEST(BuildLlama, InputsAndOutputs) {
  const LlamaConfig c = small();
  const auto graph = build_llama(c, {3, 16, true});
  ASSERT_TRUE(graph.ok());
  const auto parameters = llama_parameters(c);
  ASSERT_EQ(graph->inputs().size(), parameters.size() + 3);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(graph->inputs()[i].role, Role::kParameter);
    EXPECT_EQ(graph->inputs()[i].name, parameters[i].name);
    EXPECT_EQ(graph->type(graph->inputs()[i].value), parameters[i].type);
  }
  const TensorType ids{DType::kI32, Shape{3, 16}};
  EXPECT_EQ(graph->type(graph->find_input(Role::kTokens, "tokens")), ids);
  EXPECT_EQ(graph->type(graph->find_input(Role::kTargets, "targets")), ids);
  EXPECT_EQ(graph->type(graph->find_input(Role::kScalar, "inv_valid_tokens")),
            (TensorType{DType::kF32, Shape{}}));
  EXPECT_EQ(graph->type(graph->find_output(Role::kLoss, "loss")),
            (TensorType{DType::kF32, Shape{}}));

  const auto forward = build_llama(c, {3, 16, false});
  ASSERT_TRUE(forward.ok());
  EXPECT_EQ(forward->find_input(Role::kTargets, "targets"), kNoValue);
  EXPECT_EQ(forward->type(forward->find_output(Role::kLogits, "logits")),
            (TensorType{DType::kF32, Shape{3, 16, 256}}));
}

TEST(BuildLlama, SegmentsAndTheirOps) {
  const auto graph = build_llama(small(), {2, 8, true});
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->segments(), (std::vector<std::string>{"embed", "layer.0", "layer.1", "head"}));
  for (const char* layer : {"layer.0", "layer.1"}) {
    EXPECT_EQ(count(*graph, OpKind::kMatmul, layer), 9) << "7 projections, scores, values";
    EXPECT_EQ(count(*graph, OpKind::kRopeTable, layer), 1);
    EXPECT_EQ(count(*graph, OpKind::kRmsNorm, layer), 2);
    EXPECT_EQ(count(*graph, OpKind::kSoftmax, layer), 1);
  }
  EXPECT_EQ(count(*graph, OpKind::kGather, "embed"), 1);
  EXPECT_EQ(count(*graph, OpKind::kCrossEntropy, "head"), 1);
  for (const Op& op : graph->ops()) EXPECT_EQ(op.phase, Phase::kForward);
}

TEST(BuildLlama, LargePresetsNeedNoMemory) {
  const auto graph = build_llama(*llama_preset("llama-70b"), {4, 8192, true});
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_TRUE(verify(*graph).ok());
}

TEST(BuildLlama, RefusesBadExtents) {
  const LlamaConfig c = small();
  const auto refused = [](const Result<Graph>& r, const std::string& part) {
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
    EXPECT_NE(r.status().message().find(part), std::string::npos) << r.status().message();
  };
  refused(build_llama(c, {0, 16, true}), "batch 0");
  refused(build_llama(c, {1, 0, true}), "sequence length 0");
  refused(build_llama(c, {1, 2049, true}), "max_position_embeddings = 2048");
  LlamaConfig odd = c;
  odd.head_dim = 5;
  refused(build_llama(odd, {1, 16, true}), "head_dim");
  LlamaConfig huge = *llama_preset("llama-8b");
  huge.max_position_embeddings = INT32_MAX;
  refused(build_llama(huge, {INT32_MAX, INT32_MAX, true}), "elements");
}

}  // namespace
}  // namespace sgactor::graph
