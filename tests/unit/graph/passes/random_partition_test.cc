// Random graphs, cut at random segments and laid into an arena, cleaned or fused, compute what they
// computed whole.
#include "graph/base/philox.h"
#include "graph/ir/verify.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"
#include "graph/passes/rewrite.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/passes/split_stages.h"
#include "tests/unit/graph/ir/random_graph.h"
#include "tests/unit/graph/passes/run_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

namespace sgactor::graph {
namespace {

/// For each float input: the value that is its new state, or kNoValue.
std::vector<ValueId> draw_states(const Graph& graph, const std::vector<bool>& updated,
                                 const PhiloxStream& draw) {
  std::vector<ValueId> states;
  for (const GraphInput& input : graph.inputs()) {
    states.push_back(kNoValue);
    if (input.role == Role::kScalar || !is_float(graph.type(input.value).dtype)) continue;
    for (ValueId v = 0; v < graph.values().size(); ++v) {
      const bool fits = graph.type(v) == graph.type(input.value) && !updated[v];
      if (fits && draw.below(100 + v, 5) == 0) states.back() = v;
    }
  }
  return states;
}

/// A forward graph of a few segments in order, with many outputs: several of one value, views,
/// inputs, and (with_states) new states of its accumulators.
Graph make_forward(uint64_t seed, int num_ops, bool with_states = true) {
  const Graph source = random_graph(seed, num_ops);
  const PhiloxStream draw{seed, 99};
  std::vector<bool> updated(source.values().size(), false);
  for (const Op& op : source.ops()) {
    if (op.kind == OpKind::kAccumulate) updated[op.operands[0]] = true;
  }
  const std::vector<ValueId> states = with_states
                                          ? draw_states(source, updated, draw)
                                          : std::vector<ValueId>(source.inputs().size(), kNoValue);
  Graph graph;
  graph.name = "random";
  std::vector<ValueId> map(source.values().size(), kNoValue);
  for (size_t i = 0; i < source.inputs().size(); ++i) {
    const GraphInput& input = source.inputs()[i];
    const Role role = states[i] != kNoValue             ? Role::kAccumulator
                      : input.role == Role::kActivation ? Role::kParameter
                                                        : input.role;
    map[input.value] = graph.add_input(source.type(input.value), role, input.name);
  }
  for (const char* segment : {"a", "b.0", "b.1", "c"}) graph.segment_index(segment);
  for (OpId o = 0; o < source.ops().size(); ++o) {
    const Op& op = source.op(o);
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (ValueId v : op.operands) operands.push_back(map[v]);
    for (ValueId v : op.results) types.push_back(source.type(v));
    const auto segment = static_cast<int32_t>(4 * o / source.ops().size());
    const OpId copied = graph.add_op(op.kind, operands, op.attrs, types, Phase::kForward, segment);
    for (size_t r = 0; r < op.results.size(); ++r) map[op.results[r]] = graph.op(copied).results[r];
  }
  const uint64_t num_outputs = 1 + draw.below(1, 6);
  for (uint64_t k = 0; k < num_outputs; ++k) {
    const uint64_t v = draw.below(10 + k, source.values().size());
    if (!updated[v]) graph.add_output(map[v], Role::kMetric, "out" + std::to_string(k));
  }
  graph.add_output(static_cast<ValueId>(graph.values().size() - 1), Role::kLogits, "last");
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == kNoValue) continue;
    graph.add_output(map[states[i]], Role::kAccumulator, source.inputs()[i].name);
  }
  return graph;
}

Values random_inputs(const Graph& graph, uint64_t seed) {
  Values values;
  uint64_t stream = 0;
  for (const GraphInput& input : graph.inputs()) {
    const PhiloxStream draw{seed, ++stream};
    const TensorType& type = graph.type(input.value);
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const auto index = static_cast<uint64_t>(i);
      values[input.name].push_back(is_float(type.dtype) ? draw.normal(index) : 0);
    }
  }
  return values;
}

/// Equal bits, or both NaN (random graphs take logarithms of what comes).
bool same(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(double)) != 0) return false;
  }
  return true;
}

TEST(RandomPartitionTest, PlansComputeWhatGraphsDo) {
  int num_planned = 0;
  int num_refused = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const Graph graph = make_forward(seed, 5 + static_cast<int>(seed % 40));
    const Status good = verify(graph);
    ASSERT_TRUE(good.ok()) << good.to_string();
    Result<Plan> plan = partition_forward(graph, StorageModel::kFloat64);
    if (!plan.ok()) {
      // Only what a random graph may ask for and no plan can give: an old state that another
      // subgraph reads when it may have been replaced, one input in place of another, a sum that is
      // read while it grows.
      const std::string& message = plan.status().message();
      const auto says = [&](std::string_view part) {
        return message.find(part) != std::string::npos;
      };
      EXPECT_TRUE(says("that another subgraph updates") || says("is another input") ||
                  says("read before the last micro-batch"))
          << message;
      ++num_refused;
      continue;
    }
    const Status planned = plan_memory(*plan, 64);
    ASSERT_TRUE(planned.ok()) << "seed " << seed << ": " << planned.to_string();
    const Status verified = verify_plan(*plan);
    ASSERT_TRUE(verified.ok()) << "seed " << seed << ": " << verified.to_string();
    ++num_planned;

    const Values inputs = random_inputs(graph, seed);
    Values whole = inputs;
    // A gather from an empty table has no value.
    if (const Status ran = run_graph(graph, whole); ran.code() == Code::kInvalidArgument) continue;
    Values batch;
    for (const GraphInput& input : graph.inputs()) batch[input.name] = inputs.at(input.name);
    Values cut = inputs;
    Values packed = inputs;
    ASSERT_TRUE(run_by_buffers(*plan, {batch}, cut).ok()) << "seed " << seed;
    ASSERT_TRUE(run_in_arena(*plan, {batch}, packed).ok()) << "seed " << seed;
    for (const GraphOutput& output : graph.outputs()) {
      EXPECT_TRUE(same(cut.at(output.name), whole.at(output.name)))
          << "seed " << seed << ", " << output.name;
      EXPECT_TRUE(same(packed.at(output.name), whole.at(output.name)))
          << "seed " << seed << ", " << output.name;
    }
  }
  EXPECT_GT(num_planned, 150);
  EXPECT_GT(num_refused, 0);
}

TEST(CleanGraphTest, ComputesTheSameWithFewerOps) {
  int num_removed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Graph graph = make_forward(seed, 30);
    const Graph clean = clean_graph(graph);
    ASSERT_TRUE(verify(clean).ok()) << verify(clean).to_string();
    ASSERT_EQ(clean.outputs().size(), graph.outputs().size());
    num_removed += static_cast<int>(graph.ops().size() - clean.ops().size());
    Values a = random_inputs(graph, seed);
    Values b = a;
    const bool computable = run_graph(graph, a).ok();
    if (!computable) continue;
    ASSERT_TRUE(run_graph(clean, b).ok());
    for (const GraphOutput& output : graph.outputs()) {
      EXPECT_TRUE(same(a.at(output.name), b.at(output.name))) << "seed " << seed;
    }
    EXPECT_EQ(clean_graph(clean), clean) << "seed " << seed;
  }
  EXPECT_GT(num_removed, 200);
}

/// Equal within rounding of what lies between; NaN and infinities in the same places.
bool close(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    if (!(std::abs(a[i] - b[i]) <= 1e-9 * (1 + std::abs(a[i])))) return false;
  }
  return true;
}

TEST(FuseOpsTest, RandomGraphsComputeTheSame) {
  int num_fused = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Graph graph = make_forward(seed, 10 + static_cast<int>(seed % 40));
    std::vector<FusionReport> report;
    const Result<Graph> fused = fuse_ops(graph, &report, {.disabled = {}, .narrow = seed % 2 == 0});
    ASSERT_TRUE(fused.ok()) << "seed " << seed << ": " << fused.status().to_string();
    ASSERT_TRUE(verify(*fused).ok()) << "seed " << seed << ": " << verify(*fused).to_string();
    for (const FusionReport& r : report) num_fused += r.count;
    Values plain = random_inputs(graph, seed);
    Values rewritten = plain;
    if (!run_graph(graph, plain).ok()) continue;  // a gather from an empty table
    ASSERT_TRUE(run_graph(*fused, rewritten).ok()) << "seed " << seed;
    for (const GraphOutput& output : graph.outputs()) {
      EXPECT_TRUE(close(rewritten.at(output.name), plain.at(output.name)))
          << "seed " << seed << ", " << output.name;
    }
    const Result<Graph> again = fuse_ops(*fused);
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status().to_string();
  }
  EXPECT_GT(num_fused, 20);
}

TEST(SplitStagesTest, StagesOfRandomGraphsComputeTheSame) {
  int num_run = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Graph graph = make_forward(seed, 12 + static_cast<int>(seed % 40), false);
    Result<Plan> plan = partition_forward(graph, StorageModel::kFloat64);
    if (!plan.ok()) continue;  // what RandomPartitionTest looks at
    const auto num_stages = static_cast<int32_t>(2 + seed % 2);
    const int32_t chunks = seed % 4 == 0 ? 2 : 1;
    std::set<int32_t> segments;
    for (const Launch& l : plan->programs[0].launches) segments.insert(l.segment);
    if (static_cast<int32_t>(segments.size()) < num_stages) continue;
    Status s = split_stages(*plan, {num_stages, chunks, PipelineSchedule::k1F1B, {}});
    ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.to_string();
    place_ranks(*plan, {num_stages, 1, 1});
    s = schedule_collectives(*plan, {.prefetch = static_cast<int32_t>(seed % 3)});
    ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.to_string();
    ASSERT_TRUE(plan_memory(*plan, 64).ok()) << "seed " << seed;
    s = verify_plan(*plan);
    ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.to_string();

    Values whole = random_inputs(graph, seed);
    Values staged = whole;
    if (!run_graph(graph, whole).ok()) continue;  // a gather from an empty table
    s = run_stages(*plan, staged);
    ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.to_string();
    for (const GraphOutput& output : graph.outputs()) {
      EXPECT_TRUE(same(staged.at(output.name), whole.at(output.name)))
          << "seed " << seed << ", " << output.name;
    }
    ++num_run;
  }
  EXPECT_GT(num_run, 100);
}

}  // namespace
}  // namespace sgactor::graph
