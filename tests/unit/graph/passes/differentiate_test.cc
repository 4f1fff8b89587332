#include "graph/passes/differentiate.h"

#include "graph/base/philox.h"
#include "graph/ir/verify.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sgactor::graph {
namespace {

constexpr ForwardOptions kForward{2, 5, true};

double loss_of(const Graph& forward, Values values) {
  const Status s = run_graph(forward, values);
  EXPECT_TRUE(s.ok()) << s.to_string();
  return values.at("loss").at(0);
}

/// Gradient of a parameter: the sum of its uses'.
std::vector<double> total_gradient(const Values& outputs, const std::string& parameter) {
  std::vector<double> total = outputs.at("grad/" + parameter);
  const auto second = outputs.find("grad/" + parameter + "#1");
  if (second == outputs.end()) return total;
  for (size_t i = 0; i < total.size(); ++i) total[i] += second->second[i];
  return total;
}

class WholeModelTest : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(WholeModelTest, GradientsEqualFiniteDifferences) {
  const LlamaConfig config = tiny_config(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const Result<Graph> forward = build_llama(config, kForward);
  ASSERT_TRUE(forward.ok()) << forward.status().to_string();
  const Result<Graph> training = differentiate(*forward);
  ASSERT_TRUE(training.ok()) << training.status().to_string();
  ASSERT_TRUE(verify(*training).ok()) << verify(*training).to_string();

  Values values = random_state(config, 7);
  values.merge(random_batch(config, kForward, 7));
  Values outputs = values;
  const Status s = run_graph(*training, outputs);
  ASSERT_TRUE(s.ok()) << s.to_string();
  EXPECT_DOUBLE_EQ(outputs.at("loss").at(0), loss_of(*forward, values));

  constexpr double kStep = 1e-5;
  for (const ParameterSpec& spec : llama_parameters(config)) {
    const std::vector<double> gradient = total_gradient(outputs, spec.name);
    for (uint64_t k = 0; k < 3; ++k) {
      const size_t i = PhiloxStream{11, k}.below(0, gradient.size());
      Values moved = values;
      moved[spec.name][i] += kStep;
      const double up = loss_of(*forward, moved);
      moved[spec.name][i] -= 2 * kStep;
      const double down = loss_of(*forward, moved);
      const double expected = (up - down) / (2 * kStep);
      EXPECT_NEAR(gradient[i], expected, 1e-7 + 1e-6 * std::abs(expected))
          << spec.name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TiedAndGrouped, WholeModelTest,
                         testing::Combine(testing::Bool(), testing::Bool()));

TEST(DifferentiateTest, TiedEmbeddingHasOneGradientAUse) {
  const Result<Graph> forward = build_llama(tiny_config(true, false), kForward);
  ASSERT_TRUE(forward.ok());
  const Result<Graph> training = differentiate(*forward);
  ASSERT_TRUE(training.ok());
  EXPECT_NE(training->find_output(Role::kAccumulator, "grad/model.embed_tokens.weight"), kNoValue);
  EXPECT_NE(training->find_output(Role::kAccumulator, "grad/model.embed_tokens.weight#1"),
            kNoValue);
  EXPECT_EQ(training->find_output(Role::kAccumulator, "grad/model.embed_tokens.weight#2"),
            kNoValue);
}

TEST(DifferentiateTest, BackwardOpsStandInTheSegmentOfTheirForwardOp) {
  const Result<Graph> forward = build_llama(tiny_config(true, false), kForward);
  ASSERT_TRUE(forward.ok());
  const Result<Graph> training = differentiate(*forward);
  ASSERT_TRUE(training.ok());
  EXPECT_EQ(training->segments(), forward->segments());
  // Only one value goes back from each layer to the one before.
  for (int32_t segment = 1; segment + 1 < static_cast<int32_t>(training->segments().size());
       ++segment) {
    std::vector<ValueId> crossing;
    for (const Op& op : training->ops()) {
      if (op.phase != Phase::kBackward || op.segment != segment) continue;
      for (ValueId v : op.operands) {
        const OpId producer = training->value(v).producer;
        if (producer == kNoOp) continue;
        const Op& from = training->op(producer);
        if (from.phase == Phase::kBackward && from.segment != segment) crossing.push_back(v);
      }
    }
    std::sort(crossing.begin(), crossing.end());
    crossing.erase(std::unique(crossing.begin(), crossing.end()), crossing.end());
    EXPECT_EQ(crossing.size(), 1U) << training->segments()[static_cast<size_t>(segment)];
  }
}

TEST(AccumulateTest, MicroBatchesAddUp) {
  const LlamaConfig config = tiny_config(true, true);
  const Result<Graph> forward = build_llama(config, kForward);
  ASSERT_TRUE(forward.ok());
  const Result<Graph> training = differentiate(*forward);
  ASSERT_TRUE(training.ok());
  const Result<Graph> accumulating = accumulate_microbatches(*training);
  ASSERT_TRUE(accumulating.ok()) << accumulating.status().to_string();
  ASSERT_TRUE(verify(*accumulating).ok()) << verify(*accumulating).to_string();
  EXPECT_EQ(accumulating->find_output(Role::kLoss, "loss"), kNoValue);

  Values state = random_state(config, 3);
  Values sums;
  for (uint64_t m = 0; m < 3; ++m) {
    Values single = random_state(config, 3);
    const Values batch = random_batch(config, kForward, m);
    for (const auto& [name, values] : batch) single[name] = state[name] = values;
    ASSERT_TRUE(run_graph(*training, single).ok());
    ASSERT_TRUE(run_graph(*accumulating, state).ok());
    for (const GraphOutput& output : accumulating->outputs()) {
      std::vector<double>& sum = sums[output.name];
      const std::vector<double>& part = single.at(output.name);
      if (sum.empty()) sum.assign(part.size(), 0.0);
      for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
    }
  }
  for (const auto& [name, sum] : sums) EXPECT_EQ(state.at(name), sum) << name;
}

}  // namespace
}  // namespace sgactor::graph
