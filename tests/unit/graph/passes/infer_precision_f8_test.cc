#include "graph/passes/infer_precision_f8.h"

#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/ir/verify.h"
#include "graph/passes/choose_layout.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/infer_precision.h"
#include "graph/passes/partition_prepare.h"
#include "graph/passes/rewrite.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace sgactor::graph {
namespace {

/// Whole grains but for the keys and values, which are 8 wide.
LlamaConfig grained_config() {
  LlamaConfig c = tiny_config(true, true);
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 1;
  c.head_dim = 8;
  c.vocab_size = 48;
  return c;
}
constexpr ForwardOptions kForward{2, 8, true};

Graph bf16_graph(bool fused, const SumOptions& sums = {}) {
  Result<Graph> graph = build_llama(grained_config(), kForward);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  graph = differentiate(*graph);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  graph = accumulate_microbatches(*graph, sums);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  if (fused) graph = fuse_ops(*graph, nullptr, {.disabled = {}, .narrow = true});
  SGA_CHECK(graph.ok(), graph.status().to_string());
  graph = infer_precision(*graph, DType::kBF16);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  return *graph;
}

bool is_product(const Op& op) {
  return op.kind == OpKind::kScaledMatmul || op.kind == OpKind::kScaledMatmulAccumulate;
}
bool is_f8_head(const Graph& graph, const Op& op) {
  return op.kind == OpKind::kLinearCrossEntropyGrad &&
         graph.type(op.operands[1]).dtype == DType::kF8E4M3;
}
bool quantizes(const Op& op) {
  return op.kind == OpKind::kQuantizeF8 || op.kind == OpKind::kQuantizeF8Observed ||
         op.kind == OpKind::kQuantizeF8Both;
}

/// The graph with its quantize ops taken for identities: products read what was rounded.
Graph without_rounding(const Graph& graph) {
  Graph result;
  for (const std::string& segment : graph.segments()) result.segment_index(segment);
  Builder b(result);
  std::vector<ValueId> map(graph.values().size(), kNoValue);
  for (const GraphInput& input : graph.inputs()) {
    map[input.value] = b.input(graph.type(input.value), input.role, input.name);
  }
  for (const Op& op : graph.ops()) {
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(map[v]);
    b.set_phase(op.phase);
    b.set_segment(op.segment);
    if (quantizes(op)) {
      map[op.results[0]] = b.type(operands[0]).dtype == DType::kBF16
                               ? operands[0]
                               : b.cast(operands[0], DType::kBF16);
      if (op.results.size() > 2) map[op.results[2]] = operands[2];
      continue;
    }
    Attrs attrs = op.attrs;
    OpKind kind = op.kind;
    if (is_f8_head(graph, op)) operands.resize(5);
    if (is_product(op)) {
      const auto scales = operands.begin() + (kind == OpKind::kScaledMatmul ? 2 : 3);
      operands.erase(scales, scales + 2);
      attrs = {};
      attrs.set("trans_a", op.attrs.flag("trans_a"));
      attrs.set("trans_b", op.attrs.flag("trans_b"));
      kind = kind == OpKind::kScaledMatmul ? OpKind::kMatmul : OpKind::kMatmulAccumulate;
    }
    const std::vector<ValueId> results = b.op(kind, std::move(operands), std::move(attrs));
    for (size_t r = 0; r < results.size(); ++r) map[op.results[r]] = results[r];
  }
  for (const GraphOutput& o : graph.outputs()) {
    if (!o.name.starts_with("seen/")) b.output(map[o.value], o.role, o.name);
  }
  SGA_CHECK(b.status().ok(), b.status().to_string());
  return result;
}

Values inputs_of_step() {
  Values values = random_state(grained_config(), 3);
  values.merge(random_batch(grained_config(), kForward, 4));
  return values;
}

/// Of the whole gradient.
double cosine(const Graph& graph, const Values& a, const Values& b) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (const GraphOutput& o : graph.outputs()) {
    if (!o.name.starts_with("grad/")) continue;
    const std::vector<double>& x = a.at(o.name);
    const std::vector<double>& y = b.at(o.name);
    for (size_t i = 0; i < x.size(); ++i) {
      ab += x[i] * y[i];
      aa += x[i] * x[i];
      bb += y[i] * y[i];
    }
  }
  return ab / std::sqrt(aa * bb);
}

class InferF8 : public testing::TestWithParam<bool> {};

TEST_P(InferF8, RoundsTheLayersProductsAndNoOthers) {
  const Graph graph = bf16_graph(GetParam());
  F8Report report;
  const Result<Graph> result = infer_precision_f8(graph, &report);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_TRUE(verify(*result).ok()) << verify(*result).to_string();
  // q, o, gate, up, down of two layers, each with two products of its gradient; k and v are narrow.
  EXPECT_EQ(report.num_products, 2 * 5 * 3);
  int32_t num_products = 0;
  for (const Op& op : result->ops()) {
    if (!is_product(op)) continue;
    ++num_products;
    EXPECT_EQ(segment_name(*result, op).substr(0, 6), "layer.");
    const size_t first = op.kind == OpKind::kScaledMatmul ? 0 : 1;
    std::multiset<DType> dtypes;
    for (size_t i = first; i < first + 2; ++i) dtypes.insert(result->type(op.operands[i]).dtype);
    const bool forward = op.phase == Phase::kForward;
    EXPECT_EQ(dtypes.count(DType::kF8E5M2), forward ? 0U : 1U);
    EXPECT_EQ(dtypes.count(DType::kF8E4M3), forward ? 2U : 1U);
    const DType product = result->type(op.results[0]).dtype;
    EXPECT_EQ(product, op.kind == OpKind::kScaledMatmul ? DType::kBF16 : DType::kF32);
  }
  EXPECT_EQ(num_products, report.num_products);
  // x of q, o, gate and up, down; one w and one dy a map.
  EXPECT_EQ(report.tensors.size(), 2U * (4 + 5 + 5));
  std::set<std::string> names;
  for (const ScaledTensor& t : report.tensors) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name << " twice";
    EXPECT_NE(result->find_input(Role::kMoment, "amax/" + t.name), kNoValue) << t.name;
    EXPECT_NE(result->find_input(Role::kAccumulator, "seen/" + t.name), kNoValue) << t.name;
    EXPECT_NE(result->find_output(Role::kAccumulator, "seen/" + t.name), kNoValue) << t.name;
  }
  EXPECT_TRUE(names.contains("dy/model.layers.1.mlp.down_proj.weight"));
  EXPECT_FALSE(names.contains("w/model.layers.1.self_attn.k_proj.weight"));
}

TEST_P(InferF8, GradientGoesStraightThroughTheRounding) {
  const Graph graph = bf16_graph(GetParam());
  const Result<Graph> result = infer_precision_f8(graph);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  Values before = inputs_of_step();
  Values same = before;
  Values rounded = before;
  ASSERT_TRUE(run_graph(graph, before).ok());
  const Status ran = run_graph(without_rounding(*result), same);
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  for (const GraphOutput& o : graph.outputs()) EXPECT_EQ(same.at(o.name), before.at(o.name));
  // With scales of the same numbers, as a later step has them.
  ASSERT_TRUE(run_graph(*result, rounded).ok());
  Values again = inputs_of_step();
  for (const GraphOutput& o : result->outputs()) {
    if (o.name.starts_with("seen/")) again["amax/" + o.name.substr(5)] = rounded.at(o.name);
  }
  ASSERT_TRUE(run_graph(*result, again).ok());
  EXPECT_NEAR(again.at("loss")[0], before.at("loss")[0], 0.02 * before.at("loss")[0]);
  EXPECT_NE(again.at("loss")[0], before.at("loss")[0]);
  // Weights of this model are large and its sums short, so that roundings hardly cancel.
  EXPECT_GT(cosine(graph, again, before), 0.9);
  EXPECT_LT(cosine(graph, again, before), 1 - 1e-9);
}

TEST_P(InferF8, LayoutMovesBytesOnly) {
  const Result<Graph> graph = infer_precision_f8(bf16_graph(GetParam()));
  ASSERT_TRUE(graph.ok());
  const Result<Graph> same = choose_layout(*graph, F8Layout::kAny);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(*same, *graph);
  LayoutReport report;
  const Result<Graph> turned = choose_layout(*graph, F8Layout::kInnerLast, &report);
  ASSERT_TRUE(turned.ok()) << turned.status().to_string();
  ASSERT_TRUE(verify(*turned).ok()) << verify(*turned).to_string();
  int32_t num_quantized = 0;
  for (const Op& op : turned->ops()) {
    if (quantizes(op)) ++num_quantized;
    if (!is_product(op)) continue;
    EXPECT_FALSE(op.attrs.flag("trans_a"));
    EXPECT_TRUE(op.attrs.flag("trans_b"));
  }
  EXPECT_EQ(report.num_as_is + report.num_transposed + report.num_both, num_quantized);
  EXPECT_EQ(report.num_as_is, 2 * 5);       // weights, forward
  EXPECT_EQ(report.num_transposed, 2 * 5);  // weights, backward
  EXPECT_EQ(report.num_both, 2 * (4 + 5));
  EXPECT_GT(report.extra_bytes, 0);
  Values a = inputs_of_step();
  Values b = a;
  ASSERT_TRUE(run_graph(*graph, a).ok());
  ASSERT_TRUE(run_graph(*turned, b).ok());
  for (const GraphOutput& o : graph->outputs()) EXPECT_EQ(a.at(o.name), b.at(o.name)) << o.name;
}

TEST_P(InferF8, HeadReadsEightBitsWhereItIsFusedAndTheJobAsks) {
  const bool fused = GetParam();
  const Graph graph = bf16_graph(fused);
  F8Report report;
  const Result<Graph> result = infer_precision_f8(graph, &report, {.head = true});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_TRUE(verify(*result).ok()) << verify(*result).to_string();
  EXPECT_EQ(report.num_heads, fused ? 1 : 0);
  const auto lines = explain_f8(report);
  const auto says = [&](const std::string& text) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  };
  EXPECT_EQ(says("head: 1 in 8 bits"), fused);
  EXPECT_EQ(says("a fused head rounds"), !fused);
  EXPECT_EQ(std::count_if(result->ops().begin(), result->ops().end(),
                          [&](const Op& op) { return is_f8_head(*result, op); }),
            fused ? 1 : 0);
  F8Report without;
  ASSERT_TRUE(infer_precision_f8(graph, &without).ok());
  EXPECT_EQ(without.num_heads, 0);
  // Its rows and its weight; the gradients of its logits have a fixed scale.
  EXPECT_EQ(report.tensors.size(), without.tensors.size() + (fused ? 2 : 0));
  Values before = inputs_of_step();
  Values same = before;
  ASSERT_TRUE(run_graph(graph, before).ok());
  ASSERT_TRUE(run_graph(without_rounding(*result), same).ok());
  for (const GraphOutput& o : graph.outputs()) EXPECT_EQ(same.at(o.name), before.at(o.name));
}

TEST(InferF8Head, RoundingIsANoiseAndLayoutMovesBytesOnly) {
  const Graph graph = bf16_graph(true);
  const Result<Graph> head = infer_precision_f8(graph, nullptr, {.head = true});
  const Result<Graph> layers = infer_precision_f8(graph);
  ASSERT_TRUE(head.ok() && layers.ok());
  LayoutReport report;
  const Result<Graph> turned = choose_layout(*head, F8Layout::kInnerLast, &report);
  ASSERT_TRUE(turned.ok()) << turned.status().to_string();
  ASSERT_TRUE(verify(*turned).ok()) << verify(*turned).to_string();
  EXPECT_EQ(report.num_both, 2 * (4 + 5) + 2);
  for (const Op& op : turned->ops()) {
    if (!is_f8_head(*turned, op)) continue;
    EXPECT_EQ(op.operands.size(), 9U);
  }
  Values exact = inputs_of_step();
  Values rounded = inputs_of_step();
  Values moved = inputs_of_step();
  Values rest = inputs_of_step();
  ASSERT_TRUE(run_graph(graph, exact).ok());
  ASSERT_TRUE(run_graph(*head, rounded).ok());
  ASSERT_TRUE(run_graph(*turned, moved).ok());
  ASSERT_TRUE(run_graph(*layers, rest).ok());
  for (const GraphOutput& o : head->outputs()) {
    EXPECT_EQ(moved.at(o.name), rounded.at(o.name)) << o.name;
  }
  EXPECT_NE(rounded.at("loss")[0], rest.at("loss")[0]);
  EXPECT_NEAR(rounded.at("loss")[0], exact.at("loss")[0], 0.03 * exact.at("loss")[0]);
  EXPECT_GT(cosine(graph, rounded, exact), 0.9);
  EXPECT_LT(cosine(graph, rounded, rest), 1 - 1e-9);
}

TEST_P(InferF8, WeightsThatAreKeptAreRoundedOnceToTheSameBits) {
  const Graph graph = bf16_graph(GetParam());
  const Result<Graph> often = infer_precision_f8(graph);
  const Result<Graph> once = infer_precision_f8(graph, nullptr, {.keep_weights = true});
  ASSERT_TRUE(often.ok() && once.ok());
  ASSERT_TRUE(verify(*once).ok()) << verify(*once).to_string();
  std::set<std::string> rounded;
  for (const Op& op : once->ops()) {
    if (!quantizes(op) || once->value(op.operands[0]).producer != kNoOp) continue;
    const std::string& name = once->inputs()[once->value(op.operands[0]).result].name;
    EXPECT_TRUE(rounded.insert(name).second) << name << " twice";
  }
  EXPECT_EQ(rounded.size(), 2U * 5);
  LayoutReport report;
  ASSERT_TRUE(choose_layout(*once, F8Layout::kInnerLast, &report).ok());
  EXPECT_EQ(report.num_as_is + report.num_transposed, 0);
  EXPECT_EQ(report.num_both, 2 * (4 + 5 + 5));
  Values a = inputs_of_step();
  Values b = a;
  ASSERT_TRUE(run_graph(*often, a).ok());
  ASSERT_TRUE(run_graph(*once, b).ok());
  for (const GraphOutput& o : often->outputs()) EXPECT_EQ(a.at(o.name), b.at(o.name)) << o.name;
}

/// Scales are state, which a run with another number of micro-batches reads.
TEST_P(InferF8, NamesDoNotDependOnTheNumberOfMicroBatches) {
  F8Report several;
  F8Report one;
  ASSERT_TRUE(infer_precision_f8(bf16_graph(GetParam()), &several).ok());
  ASSERT_TRUE(infer_precision_f8(bf16_graph(GetParam(), {.one_micro_batch = true}), &one).ok());
  const auto names = [](const F8Report& report) {
    std::set<std::string> all;
    for (const ScaledTensor& t : report.tensors) all.insert(t.name);
    return all;
  };
  EXPECT_EQ(names(one), names(several));
}

/// Whoever makes an operand may round it too: nothing stands between.
TEST_P(InferF8, OperandsAreRoundedBehindTheirMakers) {
  const Result<Graph> graph = infer_precision_f8(bf16_graph(GetParam()));
  ASSERT_TRUE(graph.ok());
  int32_t num_found = 0;
  for (OpId o = 0; o < graph->ops().size(); ++o) {
    const Op& op = graph->op(o);
    if (!quantizes(op)) continue;
    const OpId maker = graph->value(op.operands[0]).producer;
    if (maker == kNoOp || !(piece_of(graph->op(maker)) == piece_of(op))) continue;
    for (OpId between = maker + 1; between < o; ++between) {
      EXPECT_TRUE(quantizes(graph->op(between))) << "op " << between << " before op " << o;
    }
    ++num_found;
  }
  EXPECT_GT(num_found, 8);
}

INSTANTIATE_TEST_SUITE_P(Fusion, InferF8, testing::Bool());

TEST(ChooseLayout, RefusesOperandsThatNothingQuantizes) {
  Graph graph;
  Builder b(graph);
  const ValueId a = b.input({DType::kF8E4M3, {16, 16}}, Role::kActivation, "a");
  const ValueId scale = b.input({DType::kF32, {}}, Role::kActivation, "scale");
  Attrs attrs;
  attrs.set("trans_a", true);
  attrs.set("trans_b", true);
  attrs.set("dtype", DType::kBF16);
  b.output(b.op1(OpKind::kScaledMatmul, {a, a, scale, scale}, attrs), Role::kActivation, "y");
  ASSERT_TRUE(b.status().ok());
  const Result<Graph> result = choose_layout(graph, F8Layout::kInnerLast);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInvalidPlan);
  EXPECT_NE(result.status().message().find("scaled_matmul"), std::string::npos);
}

TEST(UpdateF8Scales, TakesTheLargestOfAllRanksOnceAStep) {
  Graph update;
  update.segment_index("layer.0");
  const std::vector<ScaledTensor> tensors = {{"x/p", "layer.0", F8Role::kActivation, 1},
                                             {"w/p", "layer.0", F8Role::kWeight, 2},
                                             {"x/r", "layer.1", F8Role::kActivation, 1}};
  const Result<Graph> result = update_f8_scales(update, tensors, 2, 4);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_TRUE(verify(*result).ok()) << verify(*result).to_string();
  std::multiset<std::string> groups;
  int num_updates = 0;
  for (const Op& op : result->ops()) {
    if (op.kind == OpKind::kAllReduce) {
      EXPECT_EQ(op.phase, Phase::kReduce);
      EXPECT_EQ(op.attrs.text("reduce"), "max");
      groups.insert(segment_name(*result, op) + op.attrs.text("group"));
    } else {
      EXPECT_EQ(op.kind, OpKind::kUpdateAmax);
      EXPECT_EQ(op.phase, Phase::kUpdate);
      ++num_updates;
    }
  }
  EXPECT_EQ(groups,
            (std::multiset<std::string>{"layer.0dp", "layer.0tp", "layer.1dp", "layer.1tp"}));
  EXPECT_EQ(num_updates, 3);
  const Result<Graph> alone = update_f8_scales(update, tensors, 1, 1);
  ASSERT_TRUE(alone.ok());
  Values values = {{"amax/x/p", {2}}, {"seen/x/p", {3}}, {"amax/w/p", {5}},
                   {"seen/w/p", {0}}, {"amax/x/r", {7}}, {"seen/x/r", {INFINITY}}};
  ASSERT_TRUE(run_graph(*alone, values).ok());
  EXPECT_EQ(values.at("amax/x/p")[0], 3);
  EXPECT_EQ(values.at("amax/w/p")[0], 5) << "nothing was seen";
  EXPECT_EQ(values.at("amax/x/r")[0], 7) << "a step that overflowed says nothing";
}

}  // namespace
}  // namespace sgactor::graph
