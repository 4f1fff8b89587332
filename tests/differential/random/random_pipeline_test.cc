// Random models go through every pass of the compiler, each verified, and train as the definition
// says: in float64, with the same bits as f32 where the passes claim it (all but fusion and tensor
// parallelism), else within rounding. SGA_RANDOM_MODELS=FIRST:COUNT runs others than the default.
#include "graph/ir/verify.h"
#include "graph/passes/differentiate.h"
#include "kernels/reference/reference_backend.h"
#include "tests/differential/random/compile_random.h"
#include "tests/differential/random/oracle.h"
#include "tests/support/mesh_executor.h"
#include "tests/unit/graph/passes/run_plan.h"
#include "transport/storage/state_source.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sgactor::differential {
namespace {

using testing_support::MeshExecutor;
using testing_support::PlanExecutor;

constexpr int64_t kSteps = 2;
constexpr double kRounding = 1e-6;
/// bf16 has 8 bits of mantissa, and a few dozen ops of a model add up.
constexpr double kNarrowRounding = 0.2;

struct Seeds {
  uint64_t first = 1;
  uint64_t count = 240;
};

Seeds seeds() {
  Seeds s;
  if (const char* given = std::getenv("SGA_RANDOM_MODELS"); given != nullptr) {
    unsigned long long first = 0;
    unsigned long long count = 0;
    if (std::sscanf(given, "%llu:%llu", &first, &count) == 2) s = {first, count};
  }
  return s;
}

class GivenState final : public transport::StateSource {
 public:
  explicit GivenState(Numbers numbers) : numbers_(std::move(numbers)) {}
  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    std::vector<float> values(static_cast<size_t>(type.num_elements()), 0.0F);
    if (const auto found = numbers_.find(name); found != numbers_.end()) {
      if (found->second.size() != values.size()) return invalid_argument(name + ": another size");
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(found->second[i]);
    }
    std::memcpy(out.data(), values.data(), out.size());
    return {};
  }

 private:
  Numbers numbers_;
};

Result<Outcome> train_plan(const RandomModel& model, uint64_t seed, const Route& route,
                           const graph::Plan& plan, const Outcome& names) {
  SGA_ASSIGN(const auto backend, kernels::create_reference_backend({}));
  SGA_ASSIGN(const auto executor, MeshExecutor::create(plan, *backend));
  SGA_TRY(executor->load_state(GivenState(draw_parameters(model, seed))));
  Outcome out;
  for (int64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<Batch>> data(static_cast<size_t>(route.mesh.dp));
    std::vector<std::vector<PlanExecutor::MicroBatch>> views(data.size());
    for (int32_t rank = 0; rank < route.mesh.dp; ++rank) {
      auto& mine = data[static_cast<size_t>(rank)];
      for (int32_t m = 0; m < route.micro_batches; ++m)
        mine.push_back(draw_batch(model, seed, step, rank, m));
      for (const Batch& b : mine) views[static_cast<size_t>(rank)].push_back({b.tokens, b.targets});
    }
    SGA_TRY(executor->run_step(step, inv_valid_tokens(route.mesh.dp, route.micro_batches), views));
    SGA_ASSIGN(const float loss, executor->loss());
    out.losses.push_back(loss);
  }
  for (const auto& [name, values] : names.state) {
    SGA_ASSIGN(const std::vector<float> read, executor->state(name));
    out.state[name].assign(read.begin(), read.end());
  }
  return out;
}

/// Index of the first element that differs by more than `tolerance` (0: in any bit of an f32, as
/// which tensors are read); -1: none.
int64_t first_difference(const std::vector<double>& a, const std::vector<double>& b,
                         double tolerance) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    // 0 and -0 add up alike.
    if (a[i] == static_cast<float>(b[i])) continue;
    if (tolerance > 0 && std::fabs(a[i] - b[i]) <= tolerance * (1 + std::fabs(b[i]))) continue;
    return static_cast<int64_t>(i);
  }
  return -1;
}

void expect_equal(const Outcome& got, const Outcome& want, double tolerance) {
  const int64_t step = first_difference(got.losses, want.losses, tolerance);
  EXPECT_LT(step, 0) << "loss of step " << step + 1 << ": " << got.losses[static_cast<size_t>(step)]
                     << " and " << want.losses[static_cast<size_t>(step)];
  for (const auto& [name, values] : want.state) {
    const std::vector<double>& mine = got.state.at(name);
    const int64_t i = first_difference(mine, values, tolerance);
    EXPECT_LT(i, 0) << name << "[" << i << "]: " << mine[static_cast<size_t>(i)] << " and "
                    << values[static_cast<size_t>(i)];
  }
}

TEST(RandomModels, EveryRouteTrainsAsTheDefinitionSays) {
  const Seeds range = seeds();
  uint64_t num_exact = 0;
  uint64_t num_refused = 0;
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const RandomModel model = random_model(seed);
    const Route route = draw_route(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << route.to_string());
    const Result<graph::Plan> plan = compile_random(model, route);
    if (!plan.ok() && plan.status().code() == Code::kUnsupported) {
      ++num_refused;
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    const Result<Outcome> want = train_by_definition(model, seed, route.mesh.dp,
                                                     route.micro_batches, kSteps, route.optimizer);
    ASSERT_TRUE(want.ok()) << want.status().to_string();
    ASSERT_TRUE(std::isfinite(want->losses.back())) << want->losses.back();
    const Result<Outcome> got = train_plan(model, seed, route, *plan, *want);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    const bool exact = !route.fuse && route.mesh.tp == 1;
    num_exact += exact ? 1 : 0;
    expect_equal(*got, *want, exact ? 0 : kRounding);
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%llu models: %llu with the same bits, %llu refused\n",
              static_cast<unsigned long long>(range.count),
              static_cast<unsigned long long>(num_exact),
              static_cast<unsigned long long>(num_refused));
  EXPECT_GT(num_exact, range.count / 5);
  EXPECT_LT(num_refused, range.count / 10);
}

/// In bf16 the loss is close, and the graph of every pass verifies.
TEST(RandomModels, NarrowTypesStayClose) {
  const Seeds range = seeds();
  uint64_t num_run = 0;
  for (uint64_t seed = range.first; seed < range.first + range.count; seed += 4) {
    const RandomModel model = random_model(seed);
    Route route = draw_route(seed);
    route.narrow = true;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << route.to_string());
    const Result<graph::Plan> plan = compile_random(model, route);
    if (!plan.ok() && plan.status().code() == Code::kUnsupported) continue;
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    const Result<Outcome> want =
        train_by_definition(model, seed, route.mesh.dp, route.micro_batches, 1, route.optimizer);
    ASSERT_TRUE(want.ok()) << want.status().to_string();
    const Result<Outcome> got = train_plan(model, seed, route, *plan, *want);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_NEAR(got->losses[0], want->losses[0],
                kNarrowRounding * (1 + std::fabs(want->losses[0])));
    ++num_run;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_run, range.count / 8);
}

/// (loss(at + step * direction) - loss(at - step * direction)) / (2 * step)
Result<double> central_difference(const graph::Graph& forward, const graph::Values& at,
                                  const Numbers& direction, double step) {
  double difference = 0;
  for (const double side : {-1.0, 1.0}) {
    graph::Values moved = at;
    for (const auto& [name, d] : direction) {
      for (size_t i = 0; i < d.size(); ++i) moved[name][i] += side * step * d[i];
    }
    SGA_TRY(graph::run_graph(forward, moved));
    difference += side * moved.at("loss")[0];
  }
  return difference / (2 * step);
}

/// The gradient along a random direction is what central differences of the loss say. A maximum may
/// have its kink between the two points; then it has none between closer ones.
TEST(RandomModels, GradientsAreSlopes) {
  constexpr double kTolerance = 1e-5;
  const Seeds range = seeds();
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const RandomModel model = random_model(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Result<graph::Graph> training = graph::differentiate(model.forward);
    ASSERT_TRUE(training.ok()) << training.status().to_string();
    graph::Values at = draw_parameters(model, seed);
    const Batch batch = draw_batch(model, seed, 1, 0, 0);
    at["tokens"] = {batch.tokens.begin(), batch.tokens.end()};
    at["targets"] = {batch.targets.begin(), batch.targets.end()};
    at["inv_valid_tokens"] = {1.0};
    graph::Values gradients = at;
    ASSERT_TRUE(graph::run_graph(*training, gradients).ok());
    const Numbers direction = draw_parameters(model, seed + 1000000);
    double slope = 0;
    for (const graph::GraphOutput& output : training->outputs()) {
      if (output.role != graph::Role::kAccumulator || !output.name.starts_with("grad/")) continue;
      const std::string name = output.name.substr(5, output.name.find('#') - 5);
      const std::vector<double>& g = gradients.at(output.name);
      for (size_t i = 0; i < g.size(); ++i) slope += g[i] * direction.at(name)[i];
    }
    double measured = 0;
    for (const double step : {1e-6, 1e-7}) {
      const Result<double> difference = central_difference(model.forward, at, direction, step);
      ASSERT_TRUE(difference.ok()) << difference.status().to_string();
      measured = *difference;
      if (std::fabs(slope - measured) <= kTolerance * (1 + std::fabs(measured))) break;
    }
    EXPECT_NEAR(slope, measured, kTolerance * (1 + std::fabs(measured)));
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace sgactor::differential
