// A micro-batch size whose memory the device does not give is left out, and the run goes on.
#include "apps/sgactor/micro_batch_run.h"

#include "apps/sgactor/device.h"
#include "apps/sgactor/plan_cache.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/training_spec.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/actor/faulty_backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

/// Says that it has more memory than it gives.
class LyingBackend final : public testing_support::FaultyBackend {
 public:
  LyingBackend(kernels::Backend& inner, int64_t most)
      : FaultyBackend(inner, INT64_MAX), most_(most) {}
  Result<std::unique_ptr<kernels::DeviceMemory>> allocate(int64_t bytes,
                                                          std::string_view label) override {
    if (bytes <= most_) return FaultyBackend::allocate(bytes, label);
    ++num_refused;
    return make_status(Code::kOutOfMemory, "the device has no " + std::to_string(bytes) + " bytes",
                       Scope::kDevice);
  }
  int num_refused = 0;

 private:
  int64_t most_;
};

class TunedRunTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("sgactor-tuned-" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    auto job = parse_job(R"(
      [model]
      preset = "llama-tiny"
      [training]
      steps = 8
      seq_len = 8
      micro_batch_size = "auto"
      micro_batch_start = 1
      global_batch_size = 4
    )",
                         "job.toml", {});
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    job_ = std::move(*job);
    auto cpu = kernels::create_cpu_backend({});
    ASSERT_TRUE(cpu.ok()) << cpu.status().to_string();
    cpu_ = std::move(*cpu);
  }
  void TearDown() override { fs::remove_all(dir_); }
  [[nodiscard]] int64_t arena_bytes(int64_t size) const {
    JobSpec sized = job_;
    sized.training.micro_batch_size = size;
    return compile_job(sized, graph::StorageModel::kNative)->compiled.plan.programs[0].arena_bytes;
  }

  fs::path dir_;
  JobSpec job_;
  std::unique_ptr<kernels::Backend> cpu_;
};

TEST_F(TunedRunTest, ASizeThatFailsToAllocateIsRejected) {
  ASSERT_LT(arena_bytes(1), arena_bytes(2));
  LyingBackend backend(*cpu_, arena_bytes(1));
  auto setup = set_up_training(job_, graph::StorageModel::kNative);
  ASSERT_TRUE(setup.ok()) << setup.status().to_string();
  const RunDirectory run{dir_.string()};
  ASSERT_TRUE(create_run(run).ok());
  RunRecorder recorder({run, 1, job_.training.steps, 100, 1, 0});
  ASSERT_TRUE(recorder.open().ok());
  auto start = fresh_start(job_, setup->training.config);
  ASSERT_TRUE(start.ok()) << start.status().to_string();
  actors::TrainingInputs inputs;
  inputs.plan = &setup->training.compiled.plan;
  inputs.backend = &backend;
  inputs.sampler = setup->data.sampler.get();
  inputs.initial_state = start->state.get();
  inputs.observer = &recorder;
  const PlanCache cache;
  const actors::TrainingSpec spec = training_spec(job_, run, 1, false, 2);
  const auto summary = run_tuned({job_, setup->training, backend, cache, recorder}, spec, inputs);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->last_step, job_.training.steps);
  EXPECT_GT(backend.num_refused, 0);
  std::ostringstream audit;
  audit << std::ifstream(run.audit()).rdbuf();
  EXPECT_NE(audit.str().find("2 cannot run: "), std::string::npos) << audit.str();
  EXPECT_NE(audit.str().find("settles at 1"), std::string::npos) << audit.str();
}

TEST_F(TunedRunTest, TheFirstSizeMustFit) {
  LyingBackend backend(*cpu_, arena_bytes(1) / 2);
  auto setup = set_up_training(job_, graph::StorageModel::kNative);
  ASSERT_TRUE(setup.ok()) << setup.status().to_string();
  const RunDirectory run{dir_.string()};
  ASSERT_TRUE(create_run(run).ok());
  RunRecorder recorder({run, 1, job_.training.steps, 100, 1, 0});
  auto start = fresh_start(job_, setup->training.config);
  ASSERT_TRUE(start.ok()) << start.status().to_string();
  actors::TrainingInputs inputs;
  inputs.plan = &setup->training.compiled.plan;
  inputs.backend = &backend;
  inputs.sampler = setup->data.sampler.get();
  inputs.initial_state = start->state.get();
  inputs.observer = &recorder;
  const PlanCache cache;
  const auto summary = run_tuned({job_, setup->training, backend, cache, recorder},
                                 training_spec(job_, run, 1, false, 2), inputs);
  EXPECT_EQ(summary.status().code(), Code::kOutOfMemory) << summary.status().to_string();
}

}  // namespace
}  // namespace sgactor::apps
