// The same losses, gradient norms and weights as PyTorch for the models that make_fixtures.py
// trained: the graphs alone, in float64.
#include "tests/differential/torch/graph_trainer.h"
#include "tests/differential/torch/parity_check.h"

#include <gtest/gtest.h>

namespace sgactor::differential {
namespace {

class TorchParity : public testing::TestWithParam<const char*> {};

TEST_P(TorchParity, Graphs) {
  const ParityFixture f = load_fixture(GetParam());
  ASSERT_FALSE(f.losses.empty());
  auto trainer = GraphTrainer::create(f);
  ASSERT_TRUE(trainer.ok()) << trainer.status().to_string();
  for (int64_t step = 1; step <= f.num_steps; ++step) {
    const Status s = trainer->step(step);
    ASSERT_TRUE(s.ok()) << s.to_string();
    expect_step(f, step, trainer->loss(), trainer->grad_norm(), trainer->learning_rate());
  }
  for (const auto& [name, norm] : f.final_norms) expect_weight(f, name, trainer->parameter(name));
}

INSTANTIATE_TEST_SUITE_P(Models, TorchParity, kParityModels,
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace sgactor::differential
