#include "actors/strategy/gradient_operations.h"

#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace sgactor::actors {
namespace {

using testing_support::TrainingRig;

struct Case {
  const char* name;
  graph::MeshShape mesh;
  int32_t zero_stage;
  int32_t num_micro_batches;
  bool scatters;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class GradientOperations : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Meshes, GradientOperations,
                         testing::Values(Case{"dp4", {1, 4, 1}, 0, 2, false},
                                         Case{"dp2z1", {1, 2, 1}, 1, 2, true},
                                         Case{"dp2z2", {1, 2, 1}, 2, 1, true},
                                         Case{"dp2z3", {1, 2, 1}, 3, 1, true},
                                         Case{"dp2pp2", {2, 2, 1}, 0, 2, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(GradientOperations, NameEachParameterOfARankOnce) {
  const Case& c = GetParam();
  TrainingRig::Options options;
  options.backend = "cpu";
  options.mesh = c.mesh;
  options.zero_stage = c.zero_stage;
  options.num_micro_batches = c.num_micro_batches;
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  const graph::Plan& plan = (*rig)->plan;
  for (const graph::RankProgram& program : plan.programs) {
    std::map<std::string, TensorType> parameters;
    for (const graph::Buffer& b : program.buffers) {
      if (b.kind == graph::BufferKind::kParameter) parameters[b.name] = b.type;
    }
    std::multiset<std::string> found;
    for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
      const auto operations = find_gradient_operations(plan, program, static_cast<int32_t>(lane));
      ASSERT_TRUE(operations.ok()) << operations.status().to_string();
      if (lane == 0) {
        EXPECT_TRUE(operations->empty());
      }
      for (const GradientOperation& o : *operations) {
        EXPECT_EQ(o.scatters, c.scatters) << o.name;
        for (const GradientPair& pair : o.pairs) {
          found.insert(pair.parameter);
          // State is cut as the gradient is.
          EXPECT_EQ(pair.output.num_elements(), parameters[pair.parameter].num_elements())
              << pair.parameter;
        }
      }
    }
    std::multiset<std::string> expected;
    for (const auto& [name, type] : parameters) expected.insert(name);
    EXPECT_EQ(found, expected);
  }
}

TEST(GradientOperations, AreNoneWithoutDataParallelRanks) {
  TrainingRig::Options options;
  options.backend = "cpu";
  options.mesh = {2, 1, 1};
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  for (const graph::RankProgram& program : (*rig)->plan.programs) {
    for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
      const auto operations =
          find_gradient_operations((*rig)->plan, program, static_cast<int32_t>(lane));
      ASSERT_TRUE(operations.ok());
      EXPECT_TRUE(operations->empty());
    }
  }
}

}  // namespace
}  // namespace sgactor::actors
