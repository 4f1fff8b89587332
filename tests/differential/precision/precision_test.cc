// Twenty steps with bf16 matmuls and activations lie within one percent of the same steps in f32.
#include "graph/compiler/pipeline.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/differential/torch/parity_check.h"
#include "tests/support/plan_executor.h"
#include "transport/storage/initial_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <tuple>

namespace sgactor::differential {
namespace {

using testing_support::PlanExecutor;

constexpr int64_t kSteps = 20;

struct Training {
  std::vector<double> losses;
  graph::Compiled compiled;
};

Result<Training> train(const ParityFixture& f, DType precision, bool fuse) {
  graph::CompileOptions options;
  options.micro_batch_size = f.batch;
  options.num_micro_batches = static_cast<int32_t>(f.num_micro_batches);
  options.seq_len = f.seq_len;
  options.optimizer = f.optimizer;
  options.fuse = fuse;
  options.precision = precision;
  Training run;
  SGA_ASSIGN(run.compiled, graph::compile_training(f.config, options));
  SGA_ASSIGN(const auto backend, kernels::create_cpu_backend({}));
  SGA_ASSIGN(const auto executor, PlanExecutor::create(run.compiled.plan, *backend));
  SGA_TRY(executor->load_state(*transport::with_zero_moments(f.start)));
  for (int64_t step = 1; step <= kSteps; ++step) {
    const int64_t batch = (step - 1) % f.num_steps + 1;
    std::vector<PlanExecutor::MicroBatch> micro_batches;
    for (int64_t m = 0; m < f.num_micro_batches; ++m) {
      const size_t at = f.offset(batch, m);
      micro_batches.push_back({std::span(f.tokens).subspan(at, f.micro_batch_size()),
                               std::span(f.targets).subspan(at, f.micro_batch_size())});
    }
    SGA_TRY(
        executor->run_step(step, 1.0 / static_cast<double>(f.valid_tokens(batch)), micro_batches));
    SGA_ASSIGN(const std::vector<double> loss, executor->read("loss"));
    run.losses.push_back(loss[0]);
  }
  return run;
}

int64_t transient_bytes(const Training& run) {
  return run.compiled.plan.memory.activation_peak_bytes;
}

class Precision : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Precision, TwentyStepsStayWithinOnePercent) {
  const auto& [model, fuse] = GetParam();
  const ParityFixture f = load_fixture(model);
  ASSERT_GT(f.num_steps, 0);
  const Result<Training> wide = train(f, DType::kF32, fuse);
  ASSERT_TRUE(wide.ok()) << wide.status().to_string();
  const Result<Training> narrow = train(f, DType::kBF16, fuse);
  ASSERT_TRUE(narrow.ok()) << narrow.status().to_string();
  EXPECT_NE(wide->losses, narrow->losses);
  EXPECT_LT(narrow->losses.back(), narrow->losses.front());
  for (size_t i = 0; i < wide->losses.size(); ++i) {
    EXPECT_NEAR(narrow->losses[i], wide->losses[i], 0.01 * wide->losses[i]) << "step " << i + 1;
    if (i < f.losses.size()) {
      EXPECT_NEAR(narrow->losses[i], f.losses[i], 0.01 * f.losses[i]) << "PyTorch, step " << i + 1;
    }
  }
  EXPECT_EQ(narrow->compiled.plan.schema_hash, wide->compiled.plan.schema_hash);
  EXPECT_LT(transient_bytes(*narrow), transient_bytes(*wide));
}

INSTANTIATE_TEST_SUITE_P(Models, Precision, testing::Combine(kParityModels, testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_fused" : "_unfused");
                         });

}  // namespace
}  // namespace sgactor::differential
