// How much of llama-tiny's state each of four workers holds, by plan and in memory.
#include "graph/base/units.h"
#include "graph/compiler/pipeline.h"
#include "graph/models/llama.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/e2e/mesh/mesh_run.h"
#include "transport/storage/dataset.h"
#include "transport/storage/initial_state.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sgactor::tests {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int64_t kSeqLen = 32;
constexpr int32_t kNumRanks = 4;

graph::LlamaConfig model() { return *graph::llama_preset("llama-tiny"); }

Result<graph::Plan> compile(int32_t zero_stage, int32_t num_micro_batches) {
  graph::CompileOptions options;
  options.micro_batch_size = 1;
  options.num_micro_batches = num_micro_batches;
  options.seq_len = kSeqLen;
  options.mesh.dp = kNumRanks;
  options.zero_stage = zero_stage;
  SGA_ASSIGN(graph::Compiled compiled, graph::compile_training(model(), options));
  return std::move(compiled.plan);
}

/// Bytes that the plan gives a rank's state. A buffer of several slots holds each.
Held planned(const graph::Plan& plan, int32_t rank) {
  const auto program = static_cast<size_t>(plan.ranks[static_cast<size_t>(rank)].program);
  Held out;
  out.arena_bytes = plan.programs[program].arena_bytes;
  for (const graph::Buffer& b : plan.programs[program].buffers) {
    const int64_t bytes = b.bytes * b.num_slots;
    if (b.kind == graph::BufferKind::kParameter) out.parameter_bytes += bytes;
    if (b.kind == graph::BufferKind::kMoment) out.moment_bytes += bytes;
    if (b.kind == graph::BufferKind::kAccumulator) out.accumulator_bytes += bytes;
  }
  return out;
}

/// One step on four workers.
Result<WorkersRun> run_one_step(const graph::Plan& plan) {
  SGA_ASSIGN(const auto backend, kernels::create_cpu_backend({}));
  const graph::LlamaConfig config = model();
  transport::DataSpec spec;
  spec.kind = "mock";
  spec.vocab_size = config.vocab_size;
  spec.seed = kSeed;
  spec.mock_tokens = 4096;
  spec.validation_fraction = 0;
  SGA_ASSIGN(const transport::Datasets data, transport::open_datasets(spec));
  const int64_t batch = int64_t{kNumRanks} * plan.programs[0].num_micro_batches;
  const transport::Sampler sampler(data.train, kSeed, kSeqLen, batch, true);
  std::vector<transport::InitialParameter> parameters;
  for (const graph::ParameterSpec& p : graph::llama_parameters(config)) {
    parameters.push_back({p.name, p.type, p.init_std, p.init_one});
  }
  const auto state =
      transport::with_zero_moments(transport::make_initial_state(std::move(parameters), kSeed));
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.backend = backend.get();
  inputs.sampler = &sampler;
  inputs.initial_state = state.get();
  SGA_ASSIGN(const auto links, Links::create(kNumRanks, kNumRanks, {}));
  inputs.collectives = &links->of(0);
  actors::TrainingSpec training;
  training.last_step = 1;
  return run_workers(training, inputs, kNumRanks, *links);
}

void print(const char* name, const Held& held) {
  fmt::print("{:<12}{:>12}{:>12}{:>12}{:>12}{:>14}\n", name, format_bytes(held.parameter_bytes),
             format_bytes(held.moment_bytes), format_bytes(held.accumulator_bytes),
             format_bytes(held.state_bytes()), format_bytes(held.arena_bytes));
}

class StateMemory : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Zero, StateMemory, testing::Values(0, 1, 2, 3));

/// Every worker's memory is the plan's, kind by kind, and the pool has seen no byte more in use.
TEST_P(StateMemory, EachWorkerHoldsWhatThePlanSays) {
  const auto plan = compile(GetParam(), 1);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const auto run = run_one_step(*plan);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  ASSERT_EQ(run->outcome.pools.size(), size_t{kNumRanks});
  fmt::print("{:<12}{:>12}{:>12}{:>12}{:>12}{:>14}\n", "", "parameters", "moments", "accumulat.",
             "state", "whole arena");
  for (int32_t r = 0; r < kNumRanks; ++r) {
    const auto i = static_cast<size_t>(r);
    const Held want = planned(*plan, r);
    const Held& held = run->held[i];
    EXPECT_EQ(held.parameter_bytes, want.parameter_bytes);
    EXPECT_EQ(held.moment_bytes, want.moment_bytes);
    EXPECT_EQ(held.accumulator_bytes, want.accumulator_bytes);
    EXPECT_EQ(held.arena_bytes, want.arena_bytes);
    EXPECT_EQ(run->outcome.pools[i].high_water_bytes, want.arena_bytes);
    print(fmt::format("ZeRO {} rank {}", GetParam(), r).c_str(), held);
  }
}

/// With a micro-batch a rank, gradients are cut as soon as they are there.
TEST(StateShare, ZeRO3HoldsAtMostThreeTenthsOfDataParallelAlone) {
  const auto alone = compile(0, 1);
  const auto sharded = compile(3, 1);
  ASSERT_TRUE(alone.ok() && sharded.ok());
  for (int32_t r = 0; r < kNumRanks; ++r) {
    const auto whole = static_cast<double>(planned(*alone, r).state_bytes());
    const auto part = static_cast<double>(planned(*sharded, r).state_bytes());
    EXPECT_LE(part, 0.30 * whole) << "rank " << r;
    EXPECT_GE(part, 0.25 * whole) << "rank " << r << " holds less than its part";
    fmt::print("rank {}: {:.1f} % of the state\n", r, 100 * part / whole);
  }
}

/// With several, a rank adds up whole gradients and cuts them after the last: parameters and
/// moments are a fourth, accumulators are not.
TEST(StateShare, SeveralMicroBatchesKeepWholeAccumulators) {
  const auto alone = compile(0, 2);
  const auto sharded = compile(3, 2);
  ASSERT_TRUE(alone.ok() && sharded.ok());
  const Held whole = planned(*alone, 0);
  const Held part = planned(*sharded, 0);
  EXPECT_LE(part.parameter_bytes + part.moment_bytes,
            0.26 * static_cast<double>(whole.parameter_bytes + whole.moment_bytes));
  EXPECT_EQ(part.accumulator_bytes, whole.accumulator_bytes);
  fmt::print("{:.1f} % of the state\n", 100.0 * static_cast<double>(part.state_bytes()) /
                                            static_cast<double>(whole.state_bytes()));
}

}  // namespace
}  // namespace sgactor::tests
