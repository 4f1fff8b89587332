// Frames that are held back for random times change when things happen, never what comes out.
#include "tests/actor/training_rig.h"
#include "tests/e2e/mesh/mesh_run.h"

#include <gtest/gtest.h>

#include <random>

namespace sgactor::tests {
namespace {

using testing_support::bits;
using testing_support::grad_norms;
using testing_support::losses;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

constexpr int64_t kNumSteps = 3;
constexpr int64_t kMs = 1'000'000;

struct Losses {
  std::vector<uint32_t> losses, norms;
  friend bool operator==(const Losses&, const Losses&) = default;
};

class Delay : public testing::Test {
 protected:
  void SetUp() override {
    TrainingRig::Options options;
    options.backend = "cpu";
    options.mesh.dp = 2;
    options.zero_stage = 3;
    options.num_micro_batches = 1;
    auto rig = TrainingRig::create(options);
    ASSERT_TRUE(rig.ok()) << rig.status().to_string();
    rig_ = std::move(*rig);
    const auto expected = rig_->run_without_actors(kNumSteps);
    ASSERT_TRUE(expected.ok()) << expected.status().to_string();
    expected_ = {bits(expected->losses), bits(expected->grad_norms)};
  }
  /// Two workers whose frames meet `faults`.
  Result<Losses> run(const std::vector<transport::FaultScript>& faults) const {
    SGA_ASSIGN(const auto links, Links::create(2, 2, faults));
    RecordingObserver observer;
    actors::TrainingSpec spec;
    spec.last_step = kNumSteps;
    SGA_TRY(run_workers(spec, rig_->inputs(&observer), 2, *links).status());
    return Losses{bits(losses(observer.steps)), bits(grad_norms(observer.steps))};
  }

  std::unique_ptr<TrainingRig> rig_;
  Losses expected_;
};

/// A step begins with the all-gathers of ZeRO 3, so the first frames are theirs.
TEST_F(Delay, OneAllGatherOfOneWorkerChangesNothing) {
  std::mt19937_64 random(20);
  for (uint64_t frame = 0; frame < 8; ++frame) {
    transport::FaultScript late;
    late.rules = {{1, frame, transport::FaultScript::Action::kDelay,
                   static_cast<int64_t>(random() % (20 * kMs))}};
    const auto got = run({late, {}});
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, expected_) << "frame " << frame;
  }
}

TEST_F(Delay, EveryFrameOfBothWorkersChangesNothing) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    transport::FaultScript first, second;
    first.max_random_delay_ns = 2 * kMs;
    second.max_random_delay_ns = kMs / 2;
    first.seed = seed;
    second.seed = seed + 100;
    const auto got = run({first, second});
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, expected_) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sgactor::tests
