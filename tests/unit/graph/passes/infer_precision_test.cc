#include "graph/passes/infer_precision.h"

#include "graph/base/philox.h"
#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/ir/verify.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/plan/verify_program.h"
#include "tests/unit/graph/ir/random_graph.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace sgactor::graph {
namespace {

DType widened(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

/// The same graph with f32 in place of bf16: casts between the two become identities.
Graph widen(const Graph& graph) {
  Graph result;
  result.name = graph.name;
  for (const std::string& segment : graph.segments()) result.segment_index(segment);
  Builder b(result);
  std::vector<ValueId> map(graph.values().size(), kNoValue);
  for (const GraphInput& input : graph.inputs()) {
    const TensorType& type = graph.type(input.value);
    map[input.value] = b.input({widened(type.dtype), type.shape}, input.role, input.name);
  }
  for (const Op& op : graph.ops()) {
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(map[v]);
    Attrs attrs = op.attrs;
    for (const auto& [name, attr] : op.attrs.entries()) {
      if (const auto* dtype = std::get_if<DType>(&attr)) attrs.set(name, widened(*dtype));
    }
    b.set_phase(op.phase);
    b.set_segment(op.segment);
    const std::vector<ValueId> results = b.op(op.kind, std::move(operands), std::move(attrs));
    for (size_t r = 0; r < results.size(); ++r) map[op.results[r]] = results[r];
  }
  for (const GraphOutput& o : graph.outputs()) b.output(map[o.value], o.role, o.name);
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  return result;
}

Values random_inputs(const Graph& graph, uint64_t seed) {
  Values values;
  uint64_t stream = 0;
  for (const GraphInput& input : graph.inputs()) {
    const PhiloxStream draw{seed, ++stream};
    const TensorType& type = graph.type(input.value);
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      values[input.name].push_back(is_float(type.dtype) ? draw.normal(static_cast<uint64_t>(i))
                                                        : 0);
    }
  }
  return values;
}

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(double)) != 0) return false;
  }
  return true;
}

bool reads(const Graph& graph, const Op& op, DType dtype) {
  return std::any_of(op.operands.begin(), op.operands.end(),
                     [&](ValueId v) { return graph.type(v).dtype == dtype; });
}

Graph training_graph(bool fused) {
  const LlamaConfig config = tiny_config(true, true);
  Result<Graph> graph = build_llama(config, {2, 4, true});
  SGA_CHECK(graph.ok(), graph.status().to_string());
  graph = differentiate(*graph);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  graph = accumulate_microbatches(*graph);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  if (fused) graph = fuse_ops(*graph);
  SGA_CHECK(graph.ok(), graph.status().to_string());
  return *graph;
}

TEST(PrecisionRules, EveryOpHasARowWithAReason) {
  ASSERT_EQ(precision_rules().size(), op_table().size());
  for (const OpInfo& info : op_table()) {
    const PrecisionRow& row = precision_rule(info.kind);
    EXPECT_EQ(row.kind, info.kind) << info.name;
    EXPECT_FALSE(row.reason.empty()) << info.name;
    if (info.max_operands < 0) continue;
    EXPECT_EQ((row.model | row.any) >> info.max_operands, 0U) << info.name << " lacks operands";
    EXPECT_EQ(row.model & row.any, 0U) << info.name;
  }
}

TEST(InferPrecision, F32LeavesTheGraphAsItIs) {
  const Graph graph = training_graph(true);
  PrecisionReport report;
  report.num_other_casts = 7;
  const Result<Graph> result = infer_precision(graph, DType::kF32, &report);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, graph);
  EXPECT_TRUE(report.decisions.empty());
  EXPECT_EQ(report.num_other_casts, 0);
}

TEST(InferPrecision, RefusesWhatHasNoRules) {
  const Result<Graph> result = infer_precision(training_graph(true), DType::kF8E4M3);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find("f8e4m3"), std::string::npos);
}

class InferPrecisionOfModel : public testing::TestWithParam<bool> {};

TEST_P(InferPrecisionOfModel, NarrowsMatmulsAndKeepsMasters) {
  const Graph graph = training_graph(GetParam());
  PrecisionReport report;
  const Result<Graph> result = infer_precision(graph, DType::kBF16, &report);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_TRUE(verify(*result).ok()) << verify(*result).to_string();
  std::set<std::tuple<ValueId, Phase, int32_t>> parameter_casts;
  for (const Op& op : result->ops()) {
    if (op.kind == OpKind::kMatmul || op.kind == OpKind::kMatmulAccumulate) {
      EXPECT_TRUE(reads(*result, op, DType::kBF16));
      EXPECT_EQ(reads(*result, op, DType::kF32), op.kind == OpKind::kMatmulAccumulate);
    }
    if (op.kind != OpKind::kCast) continue;
    const ValueId v = op.operands[0];
    if (result->value(v).producer != kNoOp) continue;
    EXPECT_TRUE(parameter_casts.emplace(v, op.phase, op.segment).second)
        << "one cast a use and phase";
  }
  EXPECT_EQ(static_cast<int32_t>(parameter_casts.size()), report.num_parameter_casts);
  EXPECT_GT(report.num_parameter_casts, 0);
  ASSERT_EQ(report.decisions.size(), graph.ops().size());
  const std::vector<std::string> lines = explain_precision(report);
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("matmul: ") && line.find(" in bf16: ") != std::string::npos;
  }));
}

TEST_P(InferPrecisionOfModel, ComputesTheSameButForRounding) {
  const Graph graph = training_graph(GetParam());
  const Result<Graph> result = infer_precision(graph, DType::kBF16);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const LlamaConfig config = tiny_config(true, true);
  Values before = random_state(config, 3);
  before.merge(random_batch(config, {2, 4, true}, 4));
  Values exact = before;
  Values rounded = before;
  ASSERT_TRUE(run_graph(graph, before).ok());
  ASSERT_TRUE(run_graph(widen(*result), exact).ok());
  ASSERT_TRUE(run_graph(*result, rounded).ok());
  for (const GraphOutput& output : graph.outputs()) {
    EXPECT_TRUE(same(exact.at(output.name), before.at(output.name))) << output.name;
    EXPECT_FALSE(same(rounded.at(output.name), before.at(output.name))) << output.name;
  }
  EXPECT_NEAR(rounded.at("loss")[0], before.at("loss")[0], 0.01 * before.at("loss")[0]);
}

TEST_P(InferPrecisionOfModel, CastsThatAreKeptAreMadeOnceWithTheSameBits) {
  const Graph graph = training_graph(GetParam());
  PrecisionReport often;
  PrecisionReport once;
  const Result<Graph> apart = infer_precision(graph, DType::kBF16, &often);
  const Result<Graph> kept = infer_precision(graph, DType::kBF16, &once, {.keep_casts = true});
  ASSERT_TRUE(apart.ok() && kept.ok());
  ASSERT_TRUE(verify(*kept).ok()) << verify(*kept).to_string();
  std::set<ValueId> cast;
  for (const Op& op : kept->ops()) {
    if (op.kind != OpKind::kCast || kept->value(op.operands[0]).producer != kNoOp) continue;
    EXPECT_TRUE(cast.insert(op.operands[0]).second)
        << kept->inputs()[kept->value(op.operands[0]).result].name << " twice";
  }
  EXPECT_EQ(once.num_parameter_casts, static_cast<int32_t>(cast.size()));
  EXPECT_LT(once.num_parameter_casts, often.num_parameter_casts);
  EXPECT_EQ(once.num_other_casts, often.num_other_casts);
  const LlamaConfig config = tiny_config(true, true);
  Values a = random_state(config, 3);
  a.merge(random_batch(config, {2, 4, true}, 4));
  Values b = a;
  ASSERT_TRUE(run_graph(*apart, a).ok());
  ASSERT_TRUE(run_graph(*kept, b).ok());
  for (const GraphOutput& o : apart->outputs()) EXPECT_EQ(a.at(o.name), b.at(o.name)) << o.name;
}

INSTANTIATE_TEST_SUITE_P(Fusion, InferPrecisionOfModel, testing::Bool());

TEST(InferPrecisionProperty, CastsAreAllThatIsAdded) {
  int num_narrow = 0;
  int num_run = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Graph graph = widen(random_graph(seed, 5 + static_cast<int>(seed % 40)));
    if (!verify(graph).ok()) continue;
    PrecisionReport report;
    const Result<Graph> result = infer_precision(graph, DType::kBF16, &report);
    ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status().to_string();
    const Status verified = verify(*result);
    ASSERT_TRUE(verified.ok()) << "seed " << seed << ": " << verified.to_string();
    ASSERT_EQ(result->inputs(), graph.inputs());
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      EXPECT_EQ(result->type(result->outputs()[i].value), graph.type(graph.outputs()[i].value));
    }
    for (const Op& op : result->ops()) {
      EXPECT_FALSE(!fires_per_micro_batch(op.phase) && op.kind != OpKind::kCast &&
                   reads(*result, op, DType::kBF16))
          << "seed " << seed;
    }
    for (const PrecisionDecision& d : report.decisions) num_narrow += d.narrow ? 1 : 0;
    Values before = random_inputs(graph, seed);
    Values after = before;
    if (!run_graph(graph, before).ok()) continue;
    ASSERT_TRUE(run_graph(widen(*result), after).ok()) << "seed " << seed;
    ++num_run;
    for (const GraphOutput& output : graph.outputs()) {
      EXPECT_TRUE(same(after.at(output.name), before.at(output.name)))
          << "seed " << seed << ", " << output.name;
    }
  }
  EXPECT_GT(num_run, 150);
  EXPECT_GT(num_narrow, 200);
}

}  // namespace
}  // namespace sgactor::graph
