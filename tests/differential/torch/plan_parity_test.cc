// As torch_parity_test.cc, but compiled to a plan and run by a backend.
#include "graph/compiler/pipeline.h"
#include "kernels/backend/module_loader.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/differential/torch/parity_check.h"
#include "tests/support/plan_executor.h"
#include "transport/storage/initial_state.h"

#include <gtest/gtest.h>

#include <tuple>

namespace sgactor::differential {
namespace {

using testing_support::PlanExecutor;

struct Engine {
  const char* name;
  kernels::BackendEntry (*backend)();
  graph::StorageModel storage;
  bool fuse;
  DType precision = DType::kF32;
};

kernels::BackendEntry reference() { return {"reference", kernels::create_reference_backend, ""}; }
kernels::BackendEntry cpu() { return {"cpu", kernels::create_cpu_backend, ""}; }
kernels::BackendEntry cuda() {
  return kernels::probed_module_backend("cuda", kernels::beside_program("../bin/sgactor_cuda.so"));
}

constexpr Engine kReference = {"reference", reference, graph::StorageModel::kFloat64, true};
constexpr Engine kCpu = {"cpu", cpu, graph::StorageModel::kNative, true};
constexpr Engine kCpuUnfused = {"cpu_unfused", cpu, graph::StorageModel::kNative, false};
constexpr Engine kCpuBf16 = {"cpu_bf16", cpu, graph::StorageModel::kNative, true, DType::kBF16};
constexpr Engine kCuda = {"cuda", cuda, graph::StorageModel::kNative, true};
constexpr Engine kCudaBf16 = {"cuda_bf16", cuda, graph::StorageModel::kNative, true, DType::kBF16};

class PlanParity : public testing::TestWithParam<std::tuple<const char*, Engine>> {};

Result<graph::Compiled> compile(const ParityFixture& f, const Engine& engine) {
  graph::CompileOptions options;
  options.micro_batch_size = f.batch;
  options.num_micro_batches = static_cast<int32_t>(f.num_micro_batches);
  options.seq_len = f.seq_len;
  options.optimizer = f.optimizer;
  options.storage = engine.storage;
  options.fuse = engine.fuse;
  options.precision = engine.precision;
  return graph::compile_training(f.config, options);
}

Status run_step(PlanExecutor& executor, const ParityFixture& f, int64_t step) {
  std::vector<PlanExecutor::MicroBatch> micro_batches;
  for (int64_t m = 0; m < f.num_micro_batches; ++m) {
    const size_t at = f.offset(step, m);
    micro_batches.push_back({std::span(f.tokens).subspan(at, f.micro_batch_size()),
                             std::span(f.targets).subspan(at, f.micro_batch_size())});
  }
  return executor.run_step(step, 1.0 / static_cast<double>(f.valid_tokens(step)), micro_batches);
}

double read_scalar(const PlanExecutor& executor, const std::string& name) {
  const auto value = executor.read(name);
  EXPECT_TRUE(value.ok()) << value.status().to_string();
  return value.ok() ? value->at(0) : 0;
}

TEST_P(PlanParity, Steps) {
  const auto& [model, engine] = GetParam();
  const ParityFixture f = load_fixture(model);
  ASSERT_FALSE(f.losses.empty());
  const auto compiled = compile(f, engine);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const kernels::BackendEntry entry = engine.backend();
  if (!entry.create) GTEST_SKIP() << entry.unavailable;
  const double tolerance =
      engine.precision == DType::kBF16 ? kParityToleranceBf16 : kParityTolerance;
  const auto backend = entry.create({});
  ASSERT_TRUE(backend.ok()) << backend.status().to_string();
  const auto made = PlanExecutor::create(compiled->plan, **backend);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  PlanExecutor& executor = **made;
  const Status loaded = executor.load_state(*transport::with_zero_moments(f.start));
  ASSERT_TRUE(loaded.ok()) << loaded.to_string();
  for (int64_t step = 1; step <= f.num_steps; ++step) {
    const Status s = run_step(executor, f, step);
    ASSERT_TRUE(s.ok()) << s.to_string();
    expect_step(f, step, read_scalar(executor, "loss"), read_scalar(executor, "grad_norm"),
                read_scalar(executor, "lr"), tolerance);
  }
  for (const auto& [name, norm] : f.final_norms) {
    const auto values = executor.read(name);
    ASSERT_TRUE(values.ok()) << values.status().to_string();
    expect_weight(f, name, *values, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlanParity,
                         testing::Combine(kParityModels,
                                          testing::Values(kReference, kCpu, kCpuUnfused, kCpuBf16,
                                                          kCuda, kCudaBf16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace sgactor::differential
