// Whatever fails, run_training returns with that Status.
#include "actors/runtime/training.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace sgactor::actors {
namespace {

using testing_support::FaultyBackend;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

class RunTrainingFailure : public testing::Test {
 protected:
  void SetUp() override {
    TrainingRig::Options options;
    options.backend = "cpu";
    options.num_threads = 2;
    options.validation = true;
    auto rig = TrainingRig::create(options);
    ASSERT_TRUE(rig.ok()) << rig.status().to_string();
    rig_ = std::move(*rig);
    spec_.last_step = 5;
  }

  std::unique_ptr<TrainingRig> rig_;
  TrainingSpec spec_;
};

TEST_F(RunTrainingFailure, OfTheDeviceNamesTheLaunchAndStep) {
  const auto per_step = static_cast<int64_t>(rig_->plan.programs[0].lanes[0].order.size());
  for (const int64_t at : {int64_t{1}, int64_t{3}, per_step, per_step + 2}) {
    FaultyBackend faulty(*rig_->backend, at);
    TrainingInputs inputs = rig_->inputs(nullptr);
    inputs.backend = &faulty;
    const auto summary = run_training(spec_, inputs);
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(summary.status().code(), Code::kDeviceFault);
    EXPECT_EQ(summary.status().scope(), Scope::kDevice);
    EXPECT_EQ(summary.status().origin().rank, 0);
    EXPECT_EQ(summary.status().origin().step, at <= per_step ? 1 : 2);
    EXPECT_FALSE(summary.status().origin().actor.empty());
  }
}

TEST_F(RunTrainingFailure, OfStorageIsTheRuns) {
  const std::string file = testing::TempDir() + "/sga_not_a_folder";
  std::ofstream(file) << "a file";
  spec_.checkpoint_root = file + "/ckpt";
  spec_.checkpoint_interval = 1;
  const auto summary = run_training(spec_, rig_->inputs(nullptr));
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().origin().actor, "checkpoint writer");
  std::filesystem::remove(file);
}

TEST_F(RunTrainingFailure, OfTheStateIsReportedBeforeTheStart) {
  class NoState : public transport::StateSource {
   public:
    Status load(const std::string& name, const TensorType&, std::span<std::byte>) const override {
      return invalid_argument("no tensor " + name);
    }
  };
  const NoState state;
  TrainingInputs inputs = rig_->inputs(nullptr);
  inputs.initial_state = &state;
  const auto summary = run_training(spec_, inputs);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), Code::kInvalidArgument);
  EXPECT_NE(summary.status().message().find("no tensor"), std::string::npos);
}

TEST_F(RunTrainingFailure, AnExceptionOfTheObserverBecomesAStatus) {
  class Thrower : public RecordingObserver {
   public:
    void on_step(const StepReport& report) override {
      RecordingObserver::on_step(report);
      if (report.step == 2) throw std::runtime_error("the screen is full");
    }
  };
  Thrower observer;
  const auto summary = run_training(spec_, rig_->inputs(&observer));
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), Code::kInternal);
  EXPECT_NE(summary.status().message().find("the screen is full"), std::string::npos);
  EXPECT_EQ(observer.steps.size(), 2U);
}

/// Data whose tokens are outside the vocabulary: the kernel that reads them says so.
TEST_F(RunTrainingFailure, ATokenOutsideTheVocabularyEndsTheRun) {
  class BadTokens : public transport::TokenStream {
   public:
    [[nodiscard]] int64_t num_tokens() const override { return 1000; }
    [[nodiscard]] int64_t max_token() const override { return 64; }
    void read(int64_t /*begin*/, std::span<int32_t> out) const override {
      for (int32_t& t : out) t = 64;
    }
  };
  const transport::Sampler sampler(std::make_shared<BadTokens>(), 1, rig_->options.seq_len, 4,
                                   false);
  TrainingInputs inputs = rig_->inputs(nullptr);
  inputs.sampler = &sampler;
  const auto summary = run_training(spec_, inputs);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), Code::kInvalidArgument) << summary.status().to_string();
}

TEST_F(RunTrainingFailure, OfTheCallIsSaidAtOnce) {
  const TrainingInputs good = rig_->inputs(nullptr);
  const auto refuses = [&](const TrainingSpec& spec, const TrainingInputs& inputs) {
    const auto summary = run_training(spec, inputs);
    return summary.ok() ? Code::kOk : summary.status().code();
  };
  for (auto field : {0, 1, 2, 3}) {
    TrainingInputs in = good;
    if (field == 0) in.plan = nullptr;
    if (field == 1) in.backend = nullptr;
    if (field == 2) in.sampler = nullptr;
    if (field == 3) in.initial_state = nullptr;
    EXPECT_EQ(refuses(spec_, in), Code::kInvalidArgument) << field;
  }
  TrainingSpec spec = spec_;
  spec.first_step = 0;
  EXPECT_EQ(refuses(spec, good), Code::kInvalidArgument);
  spec = spec_;
  spec.validation_interval = 1;
  TrainingInputs in = good;
  in.validation_sampler = nullptr;
  EXPECT_EQ(refuses(spec, in), Code::kInvalidArgument);
  spec = spec_;
  spec.journal_file = testing::TempDir() + "/no/such/folder/journal";
  EXPECT_EQ(refuses(spec, good), Code::kInvalidArgument);
  TrainingRig::Options symbolic;
  const auto other = TrainingRig::create(symbolic);
  ASSERT_TRUE(other.ok());
  in = good;
  in.plan = &(*other)->plan;  // planned for another kind of backend
  EXPECT_EQ(refuses(spec_, in), Code::kInvalidPlan);
  in = good;
  graph::Plan broken = rig_->plan;
  broken.programs[0].lanes[0].order.pop_back();
  in.plan = &broken;
  EXPECT_EQ(refuses(spec_, in), Code::kInvalidPlan);
}

}  // namespace
}  // namespace sgactor::actors
