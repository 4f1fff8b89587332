// Recompute keeps every bit, saves what it says, and keeps budgets or says why not.
#include "graph/passes/plan_recompute.h"

#include "graph/base/philox.h"
#include "graph/ir/builder.h"
#include "graph/ir/verify.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"
#include "graph/passes/plan_recompute_choose.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace sgactor::graph {
namespace {

// The decision.

/// Whether `again` and `kept` give the backward pass all it needs, and at what cost.
struct Outcome {
  bool possible = true;
  int64_t bytes = 0;
  double flops = 0;
};
Outcome evaluate(const RecomputeProblem& problem, uint32_t again, uint32_t kept) {
  Outcome outcome;
  for (size_t i = 0; i < problem.size(); ++i) {
    const RecomputeOp& op = problem[i];
    const bool is_again = (again >> i & 1) != 0;
    const bool is_kept = (kept >> i & 1) != 0;
    outcome.possible =
        outcome.possible && !(is_again && is_kept) && !(op.needed && !is_again && !is_kept);
    outcome.possible = outcome.possible && !(op.fixed && is_again) && !(op.free && is_kept);
    if (is_kept) outcome.bytes += op.bytes;
    if (!is_again) continue;
    if (!op.free) outcome.flops += op.flops;
    for (int32_t operand : op.operands) {
      outcome.possible = outcome.possible && ((again | kept) >> operand & 1) != 0;
    }
  }
  return outcome;
}

/// Undominated outcomes by trying all of them.
std::vector<std::pair<double, int64_t>> best_outcomes(const RecomputeProblem& problem) {
  const uint32_t end = 1U << problem.size();
  std::vector<std::pair<double, int64_t>> all;
  for (uint32_t again = 0; again < end; ++again) {
    for (uint32_t kept = 0; kept < end; ++kept) {
      const Outcome o = evaluate(problem, again, kept);
      if (o.possible) all.emplace_back(o.flops, o.bytes);
    }
  }
  std::sort(all.begin(), all.end());
  std::vector<std::pair<double, int64_t>> best;
  for (const auto& o : all) {
    if (best.empty() || o.second < best.back().second) best.push_back(o);
  }
  return best;
}

RecomputeProblem random_problem(uint64_t seed, bool chain) {
  const PhiloxStream draw{seed, 5};
  uint64_t next = 0;
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(draw.below(next++, n)); };
  RecomputeProblem problem(static_cast<size_t>(3 + below(5)));
  for (size_t i = 0; i < problem.size(); ++i) {
    RecomputeOp& op = problem[i];
    op.bytes = 1 + below(20);
    op.flops = static_cast<double>(1 + below(20));
    op.needed = below(2) == 0;
    op.fixed = !chain && below(8) == 0;
    op.free = !chain && !op.fixed && below(6) == 0;
    for (size_t j = chain && i > 0 ? i - 1 : 0; j < i; ++j) {
      if (chain || below(3) == 0) op.operands.push_back(static_cast<int32_t>(j));
    }
    // A view of nothing that is there would be an input: always to be had.
    if (op.free && op.operands.empty()) op.bytes = 0;
  }
  return problem;
}

class ChoiceTest : public testing::TestWithParam<bool> {};

TEST_P(ChoiceTest, FindsWhatTryingEverythingFinds) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RecomputeProblem problem = random_problem(seed, GetParam());
    std::vector<std::pair<double, int64_t>> found;
    for (const RecomputeChoice& c : choose_recompute(problem)) found.emplace_back(c.flops, c.bytes);
    EXPECT_EQ(found, best_outcomes(problem)) << "seed " << seed;
  }
}
INSTANTIATE_TEST_SUITE_P(Graphs, ChoiceTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Chain" : "Any"; });

TEST(ChoiceTest, EverythingAgainKeepsNothingButWhatIsFixed) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RecomputeProblem problem = random_problem(seed, false);
    const RecomputeChoice all = recompute_everything(problem);
    int64_t least = INT64_MAX;
    for (const auto& [flops, bytes] : best_outcomes(problem)) least = std::min(least, bytes);
    bool any_fixed = false;
    for (const RecomputeOp& op : problem) any_fixed = any_fixed || op.fixed;
    EXPECT_GE(all.bytes, any_fixed ? least : 0);
    if (!any_fixed) {
      EXPECT_EQ(all.bytes, 0) << "seed " << seed;
    }
  }
}

TEST(ChoiceTest, SumsOfSegmentsAreTheBestSums) {
  const auto first = choose_recompute(random_problem(3, true));
  const auto second = choose_recompute(random_problem(8, true));
  std::vector<std::pair<double, int64_t>> sums;
  for (const RecomputeChoice& a : first) {
    for (const RecomputeChoice& b : second) sums.emplace_back(a.flops + b.flops, a.bytes + b.bytes);
  }
  std::sort(sums.begin(), sums.end());
  std::vector<std::pair<double, int64_t>> best;
  for (const auto& s : sums) {
    if (best.empty() || s.second < best.back().second) best.push_back(s);
  }
  std::vector<std::pair<double, int64_t>> found;
  for (const RecomputeCombination& c : combine_choices({&first, &second})) {
    found.emplace_back(c.flops, c.bytes);
    EXPECT_EQ(c.bytes, first[static_cast<size_t>(c.options[0])].bytes +
                           second[static_cast<size_t>(c.options[1])].bytes);
  }
  EXPECT_EQ(found, best);
}

// The graph.

constexpr ForwardOptions kForward{2, 4, true};

struct Graphs {
  Graph training;
  Graph update;
};

Result<Graphs> build(const LlamaConfig& config, bool fused) {
  SGA_ASSIGN(Graph graph, build_llama(config, kForward));
  SGA_ASSIGN(graph, differentiate(graph));
  SGA_ASSIGN(graph, accumulate_microbatches(graph));
  SGA_ASSIGN(const auto parameters, collect_update_parameters(graph, llama_parameters(config)));
  SGA_ASSIGN(Graph update, build_update(parameters, {}));
  if (fused) {
    SGA_ASSIGN(graph, fuse_ops(graph));
    SGA_ASSIGN(update, fuse_ops(update));
  }
  return Graphs{std::move(graph), std::move(update)};
}

Result<Plan> cut(const Graph& training, const Graph& update, StorageModel storage) {
  SGA_ASSIGN(Plan plan, partition_subgraphs(training, update, 2, storage));
  SGA_TRY(plan_memory(plan, 64));
  SGA_TRY(verify_plan(plan));
  return plan;
}

/// Pre: outlived by `update`.
MeasurePlan measure_with(const Graph& update) {
  return [&update](const Graph& training) -> Result<MemoryStats> {
    SGA_ASSIGN(const Plan plan, cut(training, update, StorageModel::kNative));
    return plan.memory;
  };
}

class RecomputeTest : public testing::TestWithParam<std::tuple<RecomputeMode, bool>> {};

TEST_P(RecomputeTest, StepKeepsEveryBit) {
  const auto [mode, fused] = GetParam();
  const LlamaConfig config = tiny_config(true, true);
  const Result<Graphs> graphs = build(config, fused);
  ASSERT_TRUE(graphs.ok()) << graphs.status().to_string();
  RecomputeReport report;
  const Result<Graph> again = plan_recompute(graphs->training, {mode, 0}, {}, &report);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  const Status valid = verify(*again);
  ASSERT_TRUE(valid.ok()) << valid.to_string();
  EXPECT_GT(again->ops().size(), graphs->training.ops().size());
  EXPECT_GT(report.num_recomputed, 0);
  EXPECT_LT(report.saved_after_bytes, report.saved_before_bytes);
  const Result<Plan> plan = cut(*again, graphs->update, StorageModel::kFloat64);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();

  const std::vector<Values> batches = {random_batch(config, kForward, 1),
                                       random_batch(config, kForward, 2)};
  Values plain = random_state(config, 1);
  Values cut_up = plain;
  const Status ran = run_step(graphs->training, graphs->update, batches, plain);
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  const Status ran_again = run_in_arena(*plan, batches, cut_up);
  ASSERT_TRUE(ran_again.ok()) << ran_again.to_string();
  for (const auto& [name, values] : plain) EXPECT_EQ(cut_up.at(name), values) << name;
}

INSTANTIATE_TEST_SUITE_P(Modes, RecomputeTest,
                         testing::Combine(testing::Values(RecomputeMode::kSelective,
                                                          RecomputeMode::kFull),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_fused" : "_plain");
                         });

TEST(RecomputeTest, FullLeavesOnlyWhatCrossesSegments) {
  const Result<Graphs> graphs = build(tiny_config(false, true), true);
  ASSERT_TRUE(graphs.ok());
  RecomputeReport report;
  const Result<Graph> full =
      plan_recompute(graphs->training, {RecomputeMode::kFull, 0}, {}, &report);
  ASSERT_TRUE(full.ok());
  // What backward ops read from forward ops: the residual stream between segments (4 values), and
  // what the head's loss leaves, the gradient of its rows.
  const int64_t residual = kForward.batch * kForward.seq_len * 8 * 4;
  EXPECT_EQ(report.saved_after_bytes, 5 * residual);
}

TEST(RecomputeTest, NoneChangesNothing) {
  const Result<Graphs> graphs = build(tiny_config(true, false), true);
  ASSERT_TRUE(graphs.ok());
  const Result<Graph> none = plan_recompute(graphs->training, {}, {}, nullptr);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, graphs->training);
}

TEST(RecomputeTest, EveryBudgetIsKeptAtTheLeastCost) {
  const Result<Graphs> graphs = build(tiny_config(true, true), true);
  ASSERT_TRUE(graphs.ok());
  const MeasurePlan measure = measure_with(graphs->update);
  const Result<MemoryStats> none = measure(graphs->training);
  ASSERT_TRUE(none.ok()) << none.status().to_string();
  const Result<Graph> full = plan_recompute(graphs->training, {RecomputeMode::kFull, 0}, {});
  ASSERT_TRUE(full.ok());
  const Result<MemoryStats> least = measure(*full);
  ASSERT_TRUE(least.ok());
  ASSERT_LT(least->planned_bytes, none->planned_bytes);
  int64_t saved = INT64_MAX;
  int64_t all_saved = 0;
  for (int i = 0; i <= 4; ++i) {
    const int64_t budget =
        none->planned_bytes - (none->planned_bytes - least->planned_bytes) * i / 4;
    RecomputeReport report;
    const Result<Graph> graph =
        plan_recompute(graphs->training, {RecomputeMode::kSelective, budget}, measure, &report);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    const Result<MemoryStats> memory = measure(*graph);
    ASSERT_TRUE(memory.ok());
    EXPECT_LE(memory->planned_bytes, budget);
    EXPECT_LE(report.saved_after_bytes, saved);  // a smaller budget keeps no more
    saved = report.saved_after_bytes;
    all_saved = report.saved_before_bytes;
    if (i == 0) {
      EXPECT_EQ(report.num_recomputed, 0);
    }
  }
  EXPECT_LT(saved, all_saved);
}

TEST(RecomputeTest, BudgetThatCannotBeMetSaysWhatWould) {
  const Result<Graphs> graphs = build(tiny_config(true, true), true);
  ASSERT_TRUE(graphs.ok());
  const MeasurePlan measure = measure_with(graphs->update);
  for (RecomputeMode mode :
       {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    const Result<Graph> refused = plan_recompute(graphs->training, {mode, 1024}, measure);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kOutOfMemory);
    for (const char* part : {"the least is", "with recompute \"", "parameters", "moments",
                             "accumulators", "activations"}) {
      EXPECT_NE(refused.status().message().find(part), std::string::npos)
          << refused.status().to_string();
    }
  }
}

// Random graphs.

/// A forward graph of four segments of random ops on [6, 4] values with a parameter each, and a
/// loss that everything leads to.
Result<Graph> random_model(uint64_t seed) {
  const PhiloxStream draw{seed, 17};
  uint64_t next = 0;
  const auto below = [&](uint64_t n) { return static_cast<size_t>(draw.below(next++, n)); };
  Graph graph;
  graph.name = "random";
  Builder b(graph);
  b.set_phase(Phase::kForward);
  std::vector<ValueId> live = {b.input({DType::kF32, {6, 4}}, Role::kParameter, "x")};
  int num_weights = 0;
  for (const char* segment : {"a", "b.0", "b.1", "c"}) {
    b.set_segment(segment);
    std::vector<ValueId> own = {live[below(live.size())]};
    for (size_t n = 2 + below(6); n > 0; --n) {
      const ValueId x = own[below(own.size())];
      const ValueId y = below(3) == 0 ? live[below(live.size())] : own[below(own.size())];
      ValueId made = kNoValue;
      switch (below(8)) {
        case 0:
        case 1:
          made = b.matmul(x, b.input({DType::kF32, {4, 4}}, Role::kParameter,
                                     "w" + std::to_string(num_weights++)));
          break;
        case 2:
          made = b.op1(OpKind::kSilu, {x});
          break;
        case 3:
          made = b.add(x, y);
          break;
        case 4:
          made = b.mul(x, y);
          break;
        case 5:
          made = b.reshape(b.op1(OpKind::kSigmoid, {b.reshape(x, {24})}), {6, 4});
          break;
        case 6:
          made = b.softmax(x);
          break;
        default:
          made = b.rms_norm(x,
                            b.input({DType::kF32, {4}}, Role::kParameter,
                                    "w" + std::to_string(num_weights++)),
                            1e-5)
                     .first;
      }
      own.push_back(made);
    }
    live.push_back(own.back());
    live.push_back(own[below(own.size())]);
  }
  ValueId sum = live[0];
  for (size_t i = 1; i < live.size(); ++i) sum = b.add(sum, live[i]);
  b.output(b.reduce_sum(b.mul(sum, sum), {0, 1}), Role::kLoss, "loss");
  SGA_TRY(b.status());
  SGA_ASSIGN(graph, differentiate(graph));
  SGA_ASSIGN(graph, accumulate_microbatches(graph));
  return graph;
}

TEST(RecomputeTest, RandomGraphsKeepTheirBits) {
  int num_changed = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Result<Graph> graph = random_model(seed);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    if (seed % 2 == 1) graph = fuse_ops(*graph);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    Values inputs;
    for (const GraphInput& input : graph->inputs()) {
      const PhiloxStream random{seed, 1000 + input.value};
      for (int64_t i = 0; i < graph->type(input.value).num_elements(); ++i) {
        inputs[input.name].push_back(random.normal(static_cast<uint64_t>(i)));
      }
    }
    Values plain = inputs;
    const Status ran = run_graph(*graph, plain);
    ASSERT_TRUE(ran.ok()) << ran.to_string();
    for (RecomputeMode mode : {RecomputeMode::kSelective, RecomputeMode::kFull}) {
      RecomputeReport report;
      const Result<Graph> again = plan_recompute(*graph, {mode, 0}, {}, &report);
      ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status().to_string();
      const Status valid = verify(*again);
      ASSERT_TRUE(valid.ok()) << "seed " << seed << ": " << valid.to_string();
      Values cloned = inputs;
      const Status ran_again = run_graph(*again, cloned);
      ASSERT_TRUE(ran_again.ok()) << ran_again.to_string();
      EXPECT_EQ(cloned, plain) << "seed " << seed;
      if (mode == RecomputeMode::kSelective) {
        EXPECT_LE(report.saved_after_bytes, report.saved_before_bytes) << "seed " << seed;
      }
      num_changed += report.num_recomputed > 0 ? 1 : 0;
      const Result<Plan> plan = cut(*again, {}, StorageModel::kFloat64);
      ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status().to_string();
    }
  }
  EXPECT_GT(num_changed, 60);
}

}  // namespace
}  // namespace sgactor::graph
