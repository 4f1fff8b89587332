#include "graph/passes/build_update.h"

#include "graph/base/philox.h"
#include "graph/ir/verify.h"
#include "tests/unit/graph/passes/run_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace sgactor::graph {
namespace {

UpdateParameter parameter(std::string name, Shape shape, bool decays, int32_t uses,
                          std::string segment) {
  return {{std::move(name), {DType::kF32, std::move(shape)}, decays, 0, false},
          uses,
          std::move(segment)};
}

const std::vector<UpdateParameter>& parameters() {
  static const std::vector<UpdateParameter> kParameters = {
      parameter("embed", {5, 4}, true, 2, "embed"), parameter("w", {4, 3}, true, 1, "layer.0"),
      parameter("norm", {4}, false, 1, "layer.0"), parameter("head", {3}, false, 1, "head")};
  return kParameters;
}

std::vector<double> draw(uint64_t stream, size_t n, double scale) {
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = scale * PhiloxStream{5, stream}.normal(i);
  return values;
}

/// The optimizer as the papers write it, one element at a time.
class PlainAdamW {
 public:
  explicit PlainAdamW(const OptimizerOptions& options) : o_(options) {}

  double rate(double step) const {
    const auto warmup = static_cast<double>(o_.warmup_steps);
    const auto end = static_cast<double>(o_.decay_steps);
    double lr = o_.lr;
    if (end > warmup && step > warmup) {
      const double t = step >= end ? 1 : (step - warmup) / (end - warmup);
      lr = o_.min_lr + (o_.lr - o_.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * t));
    }
    return step < warmup ? lr * step / warmup : lr;
  }

  void step(Values& state, double step) const {
    double squares = 0;
    std::map<std::string, std::vector<double>> gradients;
    for (const UpdateParameter& p : parameters()) {
      std::vector<double> g = state.at("grad/" + p.spec.name);
      if (p.num_uses == 2) {
        for (size_t i = 0; i < g.size(); ++i) g[i] += state.at("grad/" + p.spec.name + "#1")[i];
      }
      for (double x : g) squares += x * x;
      gradients[p.spec.name] = g;
    }
    const double norm = std::sqrt(squares);
    const double clip =
        o_.max_grad_norm > 0 ? std::min(1.0, o_.max_grad_norm / (norm + 1e-6)) : 1.0;
    const double lr = rate(step);
    for (const UpdateParameter& p : parameters()) {
      const double decay = p.spec.decays ? o_.weight_decay : 0;
      auto& w = state[p.spec.name];
      auto& m = state["m/" + p.spec.name];
      auto& v = state["v/" + p.spec.name];
      m.resize(w.size());
      v.resize(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = gradients[p.spec.name][i] * clip;
        m[i] = o_.beta1 * m[i] + (1 - o_.beta1) * g;
        v[i] = o_.beta2 * v[i] + (1 - o_.beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(o_.beta1, step));
        const double v_hat = v[i] / (1 - std::pow(o_.beta2, step));
        w[i] -= lr * decay * w[i];
        w[i] -= lr * m_hat / (std::sqrt(v_hat) + o_.eps);
      }
    }
    state["grad_norm"] = {norm};
    state["lr"] = {lr};
  }

 private:
  OptimizerOptions o_;
};

void compare_steps(const OptimizerOptions& options, double gradient_scale) {
  const Result<Graph> update = build_update(parameters(), options);
  ASSERT_TRUE(update.ok()) << update.status().to_string();
  ASSERT_TRUE(verify(*update).ok()) << verify(*update).to_string();
  Values state;
  uint64_t stream = 0;
  for (const UpdateParameter& p : parameters()) {
    state[p.spec.name] = draw(++stream, static_cast<size_t>(p.spec.type.num_elements()), 1);
  }
  Values expected = state;
  for (int step = 1; step <= 8; ++step) {
    for (const UpdateParameter& p : parameters()) {
      for (int32_t use = 0; use < p.num_uses; ++use) {
        const std::string name =
            "grad/" + p.spec.name + (use == 0 ? "" : "#" + std::to_string(use));
        state[name] = expected[name] =
            draw(++stream, static_cast<size_t>(p.spec.type.num_elements()), gradient_scale);
      }
    }
    state["step"] = {static_cast<double>(step)};
    ASSERT_TRUE(run_graph(*update, state).ok());
    PlainAdamW(options).step(expected, step);
    for (const auto& [name, values] : expected) {
      ASSERT_EQ(state.at(name).size(), values.size()) << name;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(state.at(name)[i], values[i], 1e-11 + 1e-9 * std::abs(values[i]))
            << name << "[" << i << "] after step " << step;
      }
    }
  }
}

OptimizerOptions short_schedule() {
  OptimizerOptions options;
  options.warmup_steps = 3;
  options.decay_steps = 6;
  options.norm_chunk = 4;
  return options;
}

TEST(BuildUpdateTest, EqualsAdamWWhileClipping) { compare_steps(short_schedule(), 1); }

TEST(BuildUpdateTest, EqualsAdamWBelowTheClippingNorm) { compare_steps(short_schedule(), 1e-3); }

TEST(BuildUpdateTest, EqualsAdamWWithoutClippingOrSchedule) {
  OptimizerOptions options = short_schedule();
  options.max_grad_norm = 0;
  options.warmup_steps = 0;
  options.decay_steps = 0;
  compare_steps(options, 10);
}

TEST(BuildUpdateTest, RateStaysWhereDecayEndsBeforeTheWarmUp) {
  OptimizerOptions options = short_schedule();
  options.decay_steps = 2;
  compare_steps(options, 1);
}

TEST(BuildUpdateTest, ReducePhaseComesFirstAndNormIsItsOwnSegment) {
  const Result<Graph> update = build_update(parameters(), short_schedule());
  ASSERT_TRUE(update.ok());
  const std::vector<std::string> expected = {"embed", "layer.0", "head", "norm"};
  EXPECT_EQ(update->segments(), expected);
  for (const Op& op : update->ops()) {
    EXPECT_TRUE(op.phase == Phase::kReduce || op.phase == Phase::kUpdate);
    EXPECT_TRUE(op.segment != 3 || op.phase == Phase::kReduce);
  }
}

TEST(BuildUpdateTest, RefusesBadOptions) {
  const auto fails_with = [](auto change, std::string_view key) {
    OptimizerOptions options;
    change(options);
    const Result<Graph> update = build_update(parameters(), options);
    ASSERT_FALSE(update.ok()) << key;
    EXPECT_EQ(update.status().code(), Code::kInvalidArgument);
    EXPECT_NE(update.status().message().find(key), std::string::npos) << update.status().message();
  };
  fails_with([](OptimizerOptions& o) { o.lr = -1; }, "optimizer.lr");
  fails_with([](OptimizerOptions& o) { o.min_lr = std::nan(""); }, "optimizer.min_lr");
  fails_with([](OptimizerOptions& o) { o.beta1 = 1; }, "optimizer.beta1");
  fails_with([](OptimizerOptions& o) { o.beta2 = -0.1; }, "optimizer.beta2");
  fails_with([](OptimizerOptions& o) { o.eps = 0; }, "optimizer.eps");
  fails_with([](OptimizerOptions& o) { o.weight_decay = INFINITY; }, "optimizer.weight_decay");
  fails_with([](OptimizerOptions& o) { o.max_grad_norm = std::nan(""); },
             "optimizer.max_grad_norm");
  fails_with([](OptimizerOptions& o) { o.norm_chunk = -1; }, "optimizer.norm_chunk");
}

TEST(BuildUpdateTest, RefusesBadParameters) {
  std::vector<UpdateParameter> twice = {parameters()[0], parameters()[0]};
  EXPECT_EQ(build_update(twice, {}).status().code(), Code::kInvalidPlan);
  std::vector<UpdateParameter> half = {parameters()[0]};
  half[0].spec.type.dtype = DType::kBF16;
  EXPECT_EQ(build_update(half, {}).status().code(), Code::kInvalidPlan);
  std::vector<UpdateParameter> unused = {parameters()[0]};
  unused[0].num_uses = 0;
  EXPECT_EQ(build_update(unused, {}).status().code(), Code::kInvalidPlan);
  std::vector<UpdateParameter> clash = {parameters()[0]};
  clash[0].segment = "norm";
  EXPECT_EQ(build_update(clash, {}).status().code(), Code::kInvalidPlan);
}

}  // namespace
}  // namespace sgactor::graph
