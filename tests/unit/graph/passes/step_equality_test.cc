// A step computed by the plan equals the step of the graphs it was cut from, bit for bit: launch by
// launch (cuts, bindings, order) and in one arena that starts as NaN (memory).
#include "graph/ir/verify.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sgactor::graph {
namespace {

constexpr ForwardOptions kForward{2, 4, true};
constexpr int64_t kNormChunk = 7;

struct Graphs {
  Graph training;
  Graph update;
};

Result<Graphs> build_graphs(const LlamaConfig& config, const SumOptions& sums = {}) {
  SGA_ASSIGN(Graph graph, build_llama(config, kForward));
  SGA_ASSIGN(graph, differentiate(graph));
  SGA_ASSIGN(graph, accumulate_microbatches(graph, sums));
  SGA_ASSIGN(const auto parameters, collect_update_parameters(graph, llama_parameters(config)));
  OptimizerOptions options;
  options.norm_chunk = kNormChunk;
  SGA_ASSIGN(Graph update, build_update(parameters, options));
  return Graphs{std::move(graph), std::move(update)};
}

Result<Graphs> fuse(const Graphs& graphs) {
  SGA_ASSIGN(Graph training, fuse_ops(graphs.training));
  SGA_ASSIGN(Graph update, fuse_ops(graphs.update));
  return Graphs{std::move(training), std::move(update)};
}

/// Two steps of `num_micro_batches`, by `run(batches, state)`; accumulators hold `left` before
/// each.
template <class Run>
Values two_steps(const LlamaConfig& config, int32_t num_micro_batches, Run run, double left = 0) {
  Values state = random_state(config, 1);
  for (int step = 1; step <= 2; ++step) {
    state["step"] = {static_cast<double>(step)};
    for (auto& [name, values] : state) {
      if (name == "loss" || name.starts_with("grad/")) values.assign(values.size(), left);
    }
    std::vector<Values> batches;
    for (int32_t m = 0; m < num_micro_batches; ++m) {
      batches.push_back(random_batch(config, kForward, static_cast<uint64_t>(100 * step + m)));
    }
    const Status s = run(batches, state);
    EXPECT_TRUE(s.ok()) << s.to_string();
    if (!s.ok()) break;
  }
  return state;
}

void expect_equal(const Values& actual, const Values& expected, double tolerance) {
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    const std::vector<double>& other = actual.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(values[i])) << name;
      ASSERT_LE(std::abs(other[i] - values[i]), tolerance * (1 + std::abs(values[i])))
          << name << "[" << i << "]";
    }
  }
}

struct Case {
  bool tied, grouped, fused;
  int32_t num_micro_batches;
};

class StepEqualityTest : public testing::TestWithParam<Case> {};

TEST_P(StepEqualityTest, PlanComputesWhatTheGraphsDo) {
  const Case& c = GetParam();
  const LlamaConfig config = tiny_config(c.tied, c.grouped);
  Result<Graphs> graphs = build_graphs(config);
  ASSERT_TRUE(graphs.ok()) << graphs.status().to_string();
  if (c.fused) graphs = fuse(*graphs);
  ASSERT_TRUE(graphs.ok()) << graphs.status().to_string();
  Result<Plan> plan = partition_subgraphs(graphs->training, graphs->update, c.num_micro_batches,
                                          StorageModel::kFloat64);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const Status planned = plan_memory(*plan, 64);
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  const Status verified = verify_plan(*plan);
  ASSERT_TRUE(verified.ok()) << verified.to_string();

  const Values whole = two_steps(config, c.num_micro_batches, [&](const auto& b, Values& state) {
    return run_step(graphs->training, graphs->update, b, state);
  });
  const Values cut = two_steps(config, c.num_micro_batches, [&](const auto& b, Values& state) {
    return run_by_buffers(*plan, b, state);
  });
  const Values packed = two_steps(config, c.num_micro_batches, [&](const auto& b, Values& state) {
    return run_in_arena(*plan, b, state);
  });
  expect_equal(cut, whole, 0);
  expect_equal(packed, whole, 0);
  EXPECT_GE(plan->memory.planned_bytes, plan->memory.lower_bound_bytes);
  EXPECT_GE(plan->memory.naive_bytes, plan->memory.planned_bytes);
}

INSTANTIATE_TEST_SUITE_P(Models, StepEqualityTest,
                         testing::Values(Case{true, false, false, 1}, Case{true, true, true, 1},
                                         Case{false, true, false, 3}, Case{false, false, true, 3}));

/// With one micro-batch nothing reads what accumulators held, and a tied embedding has one. The
/// numbers are those of the plan that adds to zeros.
TEST(StepEqualityTest, OneMicroBatchNeedsNoZeros) {
  for (const bool tied : {true, false}) {
    for (const bool fused : {true, false}) {
      const LlamaConfig config = tiny_config(tied, true);
      Result<Graphs> adding = build_graphs(config);
      Result<Graphs> once = build_graphs(config, {true, true, kNormChunk});
      ASSERT_TRUE(adding.ok() && once.ok());
      if (fused) adding = fuse(*adding);
      if (fused) once = fuse(*once);
      ASSERT_TRUE(adding.ok() && once.ok());
      Result<Plan> plan =
          partition_subgraphs(once->training, once->update, 1, StorageModel::kFloat64);
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      ASSERT_TRUE(plan_memory(*plan, 64).ok());
      ASSERT_TRUE(verify_plan(*plan).ok()) << verify_plan(*plan).to_string();
      for (const Buffer& b : plan->programs[0].buffers) EXPECT_EQ(b.name.find('#'), b.name.npos);

      const Values want = two_steps(config, 1, [&](const auto& b, Values& state) {
        return run_step(adding->training, adding->update, b, state);
      });
      const double nan = std::nan("");
      Values cut = two_steps(
          config, 1, [&](const auto& b, Values& state) { return run_by_buffers(*plan, b, state); },
          nan);
      Values packed = two_steps(
          config, 1, [&](const auto& b, Values& state) { return run_in_arena(*plan, b, state); },
          nan);
      for (const auto& [name, values] : want) {
        if (name.starts_with("grad/")) continue;
        ASSERT_EQ(cut[name], values) << name;
        ASSERT_EQ(packed[name], values) << name;
      }
    }
  }
}

TEST(StepEqualityTest, FusedOpsComputeWhatPrimitivesDo) {
  const LlamaConfig config = tiny_config(true, true);
  const Result<Graphs> plain = build_graphs(config);
  ASSERT_TRUE(plain.ok());
  const Result<Graphs> fused = fuse(*plain);
  ASSERT_TRUE(fused.ok()) << fused.status().to_string();
  EXPECT_LT(2 * fused->training.ops().size(), 2 * plain->training.ops().size());
  const auto run = [&](const Graphs& graphs) {
    return two_steps(config, 2, [&](const auto& b, Values& state) {
      return run_step(graphs.training, graphs.update, b, state);
    });
  };
  expect_equal(run(*fused), run(*plain), 1e-9);
}

}  // namespace
}  // namespace sgactor::graph
