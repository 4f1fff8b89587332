// Each pattern of fuse_ops against the ops that it stands for, in one training step of a whole
// model: with the pattern and without it, all others as they are. In float64 on `reference` all
// agree within rounding. On `cpu` those that claim it agree in every bit, the others are close.
#include "graph/base/philox.h"
#include "graph/compiler/pipeline.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/plan_executor.h"
#include "transport/storage/initial_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace sgactor::differential {
namespace {

using graph::BufferKind;
using testing_support::PlanExecutor;

struct Case {
  const char* pattern;
  bool exact_on_cpu;
  std::vector<std::string> without = {};  ///< disabled on both sides, so that this one finds work
  bool narrow = false;                    ///< in bf16
};
const Case kCases[] = {
    {"flash_attention", false},  // sums of a row in blocks
    {"linear_cross_entropy", true},
    {"swiglu", false},
    {"matmul_add", false, {}, true},           // product and sum are rounded once
    {"matmul_add_gradient", false, {}, true},  // likewise
    {"add_rms_norm", true},
    {"add_rms_norm_grad", false},
    {"matmul_accumulate", false},  // blocks of the depth add up on the accumulator
    {"matmul_sum", false},         // likewise
    {"adamw", false},
    {"fused_pointwise", true, {"swiglu", "adamw"}},
};

using State = std::map<std::string, std::vector<double>>;

graph::LlamaConfig small_model() {
  graph::LlamaConfig c;
  c.vocab_size = 97;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  return c;
}

/// Loss, accumulators, parameters and moments after a step of two micro-batches.
Result<State> run_step(kernels::Backend& backend, bool float64, bool narrow,
                       const std::vector<std::string>& disabled, int64_t seq_len,
                       std::vector<graph::FusionReport>* fusions) {
  const graph::LlamaConfig model = small_model();
  graph::CompileOptions options;
  options.micro_batch_size = 2;
  options.num_micro_batches = 2;
  options.seq_len = seq_len;
  if (narrow) options.precision = DType::kBF16;
  options.storage = float64 ? graph::StorageModel::kFloat64 : graph::StorageModel::kNative;
  for (const std::string& name : disabled) options.disabled_passes.push_back("fuse_ops." + name);
  SGA_ASSIGN(const graph::Compiled compiled, graph::compile_training(model, options));
  *fusions = compiled.fusions;
  SGA_ASSIGN(const auto executor, PlanExecutor::create(compiled.plan, backend));
  std::vector<transport::InitialParameter> parameters;
  for (const graph::ParameterSpec& p : graph::llama_parameters(model))
    parameters.push_back({p.name, p.type, p.init_std, p.init_one});
  SGA_TRY(executor->load_state(
      *transport::with_zero_moments(transport::make_initial_state(std::move(parameters), 3))));
  const auto size = static_cast<size_t>(2 * seq_len);
  std::vector<int32_t> tokens(2 * size);
  std::vector<int32_t> targets(2 * size);
  const auto vocab = static_cast<uint64_t>(model.vocab_size);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(PhiloxStream{7, 1}.below(i, vocab));
    targets[i] = i % 7 == 6 ? -1 : static_cast<int32_t>(PhiloxStream{7, 2}.below(i, vocab));
  }
  std::vector<PlanExecutor::MicroBatch> batches;
  for (size_t m = 0; m < 2; ++m) {
    batches.push_back(
        {std::span(tokens).subspan(m * size, size), std::span(targets).subspan(m * size, size)});
  }
  SGA_TRY(executor->run_step(1, 1.0 / static_cast<double>(tokens.size()), batches));
  State state;
  for (const graph::Buffer& b : compiled.plan.programs[0].buffers) {
    if (!is_persistent(b.kind) || b.kind == BufferKind::kScalar) continue;
    SGA_ASSIGN(state[b.name], executor->read(b.name));
  }
  return state;
}

/// Largest difference, relative to the largest magnitude of its tensor.
double largest_difference(const State& a, const State& b) {
  double worst = 0;
  for (const auto& [name, values] : a) {
    const std::vector<double>& other = b.at(name);
    double scale = 0;
    double difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(std::isfinite(values[i])) << name;
      scale = std::max(scale, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - other[i]));
    }
    if (difference > 0) worst = std::max(worst, difference / std::max(scale, 1e-30));
  }
  return worst;
}

class FusionDifferential : public testing::TestWithParam<Case> {};

TEST_P(FusionDifferential, ComputesWhatItStandsFor) {
  const Case& c = GetParam();
  std::vector<std::string> disabled = c.without;
  disabled.emplace_back(c.pattern);
  for (const bool float64 : {true, false}) {
    // On cpu more rows than a matmul adds up at once, so that the head has several blocks.
    const int64_t seq_len = float64 ? 8 : 300;
    auto backend =
        float64 ? kernels::create_reference_backend({}) : kernels::create_cpu_backend({});
    ASSERT_TRUE(backend.ok()) << backend.status().to_string();
    std::vector<graph::FusionReport> with;
    std::vector<graph::FusionReport> without;
    const auto fused = run_step(**backend, float64, c.narrow, c.without, seq_len, &with);
    const auto plain = run_step(**backend, float64, c.narrow, disabled, seq_len, &without);
    ASSERT_TRUE(fused.ok()) << fused.status().to_string();
    ASSERT_TRUE(plain.ok()) << plain.status().to_string();
    const auto is_pattern = [&](const graph::FusionReport& f) { return f.pattern == c.pattern; };
    EXPECT_TRUE(std::any_of(with.begin(), with.end(), is_pattern)) << "no such pattern";
    EXPECT_FALSE(std::any_of(without.begin(), without.end(), is_pattern));
    ASSERT_EQ(fused->size(), plain->size());
    const double difference = largest_difference(*fused, *plain);
    if (float64) {
      EXPECT_LT(difference, 1e-9);
    } else if (c.exact_on_cpu) {
      EXPECT_EQ(difference, 0);
    } else {
      EXPECT_LT(difference, c.narrow ? 3e-2 : 2e-3);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Patterns, FusionDifferential, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.pattern); });

}  // namespace
}  // namespace sgactor::differential
