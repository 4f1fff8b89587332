// Arenas of llama-1b at 4096 tokens: against one address a tensor, and against what no plan can
// beat. Prints the figures.
#include "graph/base/units.h"
#include "graph/compiler/pipeline.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sgactor::graph {
namespace {

Result<Plan> plan_of(int64_t batch, RecomputeMode mode) {
  CompileOptions options;
  options.micro_batch_size = batch;
  options.seq_len = 4096;
  options.recompute.mode = mode;
  SGA_ASSIGN(Compiled compiled, compile_training(llama_preset("llama-1b").value(), options));
  return std::move(compiled.plan);
}

struct Target {
  int64_t batch;
  RecomputeMode mode;
};
class MemoryTarget : public testing::TestWithParam<Target> {};

TEST_P(MemoryTarget, ArenaIsSmallAndNearTheBound) {
  const Target& t = GetParam();
  const Result<Plan> plan = plan_of(t.batch, t.mode);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const Result<Plan> kept = plan_of(t.batch, RecomputeMode::kNone);
  ASSERT_TRUE(kept.ok()) << kept.status().to_string();
  const MemoryStats& m = plan->memory;
  // One address for each tensor of the plan that computes nothing twice.
  const auto naive = static_cast<double>(kept->memory.naive_bytes);
  const auto planned = static_cast<double>(m.planned_bytes);
  const auto bound = static_cast<double>(m.lower_bound_bytes);
  fmt::print(
      "  llama-1b, batch {} x 4096, recompute {:9}: arena {}, naive {} ({:.1f} %), lower "
      "bound {} (+{:.1f} %), activations {}\n",
      t.batch, to_string(t.mode), format_bytes(m.planned_bytes),
      format_bytes(kept->memory.naive_bytes), 100 * planned / naive,
      format_bytes(m.lower_bound_bytes), 100 * (planned / bound - 1),
      format_bytes(m.activation_peak_bytes));
  EXPECT_LE(planned, 0.55 * naive);
  EXPECT_LE(planned, 1.05 * bound);
}

INSTANTIATE_TEST_SUITE_P(Llama1b, MemoryTarget,
                         testing::Values(Target{8, RecomputeMode::kNone},
                                         Target{8, RecomputeMode::kSelective},
                                         Target{8, RecomputeMode::kFull}),
                         [](const auto& info) { return std::string(to_string(info.param.mode)); });

TEST(RecomputeOnMeshes, ShrinksEveryMesh) {
  struct Case {
    MeshShape mesh;
    int32_t zero_stage;
  };
  for (const Case& c : {Case{{1, 2, 1}, 0}, Case{{1, 2, 1}, 1}, Case{{1, 2, 1}, 3},
                        Case{{1, 1, 2}, 0}, Case{{2, 1, 1}, 0}, Case{{2, 2, 2}, 3}}) {
    CompileOptions options;
    options.num_micro_batches = 2;
    options.seq_len = 64;
    options.mesh = c.mesh;
    options.zero_stage = c.zero_stage;
    const std::string what =
        fmt::format("pp {} dp {} tp {} ZeRO {}", c.mesh.pp, c.mesh.dp, c.mesh.tp, c.zero_stage);
    const auto kept = compile_training(llama_preset("llama-tiny").value(), options);
    ASSERT_TRUE(kept.ok()) << what << ": " << kept.status().to_string();
    options.recompute.mode = RecomputeMode::kFull;
    const auto again = compile_training(llama_preset("llama-tiny").value(), options);
    ASSERT_TRUE(again.ok()) << what << ": " << again.status().to_string();
    EXPECT_LT(again->plan.memory.activation_peak_bytes, kept->plan.memory.activation_peak_bytes)
        << what;
  }
}

}  // namespace
}  // namespace sgactor::graph
