// What is free on a GPU, what the backend takes of it beside plans, and what a run does that finds
// too little.
#include "actors/runtime/training.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/units.h"
#include "kernels/backend/module_loader.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMiB = int64_t{1} << 20;

Result<std::unique_ptr<kernels::Backend>> open_gpu() {
  kernels::BackendTable table;
  table.add(
      kernels::lazy_module_backend("cuda", kernels::beside_program("../bin/sgactor_cuda.so")));
  return create_device(table, {"cuda", {}});
}

class GpuMemory : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_gpu();
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    gpu_ = std::move(*opened);
    dir_ = fs::path(testing::TempDir()) / ("sga_gpu_memory_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }

  /// A job file of a preset on made-up tokens.
  std::string job(const std::string& preset, const std::string& dtype) const {
    const std::string file = (dir_ / "job.toml").string();
    std::ofstream(file) << "[model]\npreset = \"" << preset << "\"\n[data]\nkind = \"mock\"\n"
                        << "[training]\nsteps = 4\nseq_len = 1024\nmicro_batch_size = 4\n"
                        << "global_batch_size = 8\ndtype = \"" << dtype << "\"\n"
                        << "[parallelism]\ndata_parallel_degree = 2\n";
    return file;
  }
  /// All that is free but `left` bytes.
  Result<std::unique_ptr<kernels::DeviceMemory>> take_all_but(int64_t left) {
    SGA_ASSIGN(const auto now, open_gpu());
    return gpu_->allocate(now->info().free_bytes - left, "ballast");
  }
  struct Outcome {
    int exit_code = -1;
    std::string text;
  };
  /// The program, with what it writes to either stream.
  Outcome run(const std::string& words) const {
    const std::string command = "cd '" + dir_.string() + "' && '" +
                                kernels::beside_program("../bin/sgactor") + "' " + words + " 2>&1";
    Outcome out;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return out;
    std::array<char, 4096> buffer{};
    while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out.text += buffer.data();
    const int status = ::pclose(pipe);
    if (WIFEXITED(status)) out.exit_code = WEXITSTATUS(status);
    return out;
  }

  std::unique_ptr<kernels::Backend> gpu_;
  fs::path dir_;
};

TEST_F(GpuMemory, WhatIsHeldIsNotFree) {
  const kernels::DeviceInfo& first = gpu_->info();
  EXPECT_GT(first.free_bytes, 0);
  EXPECT_LT(first.free_bytes, first.memory_bytes) << "the context takes some";
  const auto held = gpu_->allocate(4096 * kMiB, "ballast");
  ASSERT_TRUE(held.ok()) << held.status().message();
  const auto second = open_gpu();
  ASSERT_TRUE(second.ok());
  const int64_t less = first.free_bytes - (*second)->info().free_bytes;
  EXPECT_GE(less, 4096 * kMiB);
  EXPECT_LE(less, (4096 + 256) * kMiB) << format_bytes(less);
}

TEST_F(GpuMemory, TooMuchIsTheDevicesFault) {
  const auto held = gpu_->allocate(gpu_->info().memory_bytes, "ballast");
  EXPECT_EQ(held.status().code(), Code::kOutOfMemory);
  EXPECT_EQ(exit_code(held.status()), kExitNoDevice) << held.status().to_string();
}

/// In the middle of a run: what is gone, and what of it was asked for.
class Taken final : public actors::TrainingObserver {
 public:
  explicit Taken(const kernels::Backend& gpu) : gpu_(gpu) {}
  void on_step(const actors::StepReport& r) override {
    if (r.step < 3) return;  // recorded by then
    const auto now = open_gpu();
    if (!now.ok()) return;
    live_bytes = gpu_.allocation_stats().live_bytes;
    gone_bytes = gpu_.info().free_bytes - (*now)->info().free_bytes;
  }
  void on_validation(int64_t, double) override {}
  void on_checkpoint(int64_t, const std::string&, const transport::WriteStats&) override {}
  int64_t live_bytes = 0;
  int64_t gone_bytes = 0;

 private:
  const kernels::Backend& gpu_;
};

class GpuReserve : public GpuMemory, public testing::WithParamInterface<const char*> {};

TEST_P(GpuReserve, IsEnoughForWhatTheBackendTakesBesidePlans) {
  auto read = load_job(job("llama-125m", GetParam()), {{"parallelism.data_parallel_degree", "1"}});
  ASSERT_TRUE(read.ok()) << read.status().message();
  choose_f8_layout(*read, "cuda");
  const auto setup = set_up_training(*read, storage_model(*gpu_));
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const graph::Plan& plan = setup->training.compiled.plan;
  ASSERT_TRUE(check_memory(plan, *gpu_).ok());
  const auto start = fresh_start(*read, setup->training.config);
  ASSERT_TRUE(start.ok());
  Taken taken(*gpu_);
  actors::TrainingSpec spec;
  spec.last_step = 4;
  spec.final_checkpoint = false;
  spec.scheduler_threads = 4;
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.backend = gpu_.get();
  inputs.sampler = setup->data.sampler.get();
  inputs.initial_state = start->state.get();
  inputs.observer = &taken;
  const auto summary = actors::run_training(spec, inputs);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  const int64_t arenas = held_bytes(plan, {0});
  const int64_t scratch = taken.live_bytes - arenas;
  const int64_t unasked = taken.gone_bytes - taken.live_bytes;
  std::printf("%s: arena %s, scratch %s, beside allocations %s\n", GetParam(),
              format_bytes(arenas).c_str(), format_bytes(scratch).c_str(),
              format_bytes(unasked).c_str());
  ASSERT_GT(taken.live_bytes, arenas);
  EXPECT_LE(scratch, gpu_->info().scratch_bytes);
  EXPECT_LE(unasked, gpu_->info().process_bytes);
}
INSTANTIATE_TEST_SUITE_P(Types, GpuReserve, testing::Values("f32", "bf16", "fp8"));

TEST_F(GpuMemory, ARunThatFindsTooLittleEndsBeforeItBegins) {
  const std::string words =
      "train " + job("llama-125m", "bf16") + " --parallelism.data_parallel_degree=1 --run-dir ";
  const auto held = take_all_but(3072 * kMiB);
  ASSERT_TRUE(held.ok()) << held.status().message();
  const Outcome one = run(words + "one --devices cuda:0");
  EXPECT_EQ(one.exit_code, 3) << one.text;
  EXPECT_EQ(one.text.rfind("sgactor: the plan needs ", 0), 0U) << one.text;
  EXPECT_NE(one.text.find("cuda:0 has "), std::string::npos) << one.text;
  EXPECT_FALSE(fs::exists(dir_ / "one"));
}

TEST_F(GpuMemory, WithoutRoomForTheirCopiesCheckpointsAreWrittenFromTheHost) {
  const std::string words = "train " + job("llama-125m", "bf16") +
                            " --devices cuda:0 --parallelism.data_parallel_degree=1 --run-dir ";
  const Outcome roomy = run(words + "roomy");
  ASSERT_EQ(roomy.exit_code, 0) << roomy.text;
  EXPECT_EQ(roomy.text.find("has no room for the copies"), std::string::npos) << roomy.text;
  // An arena of 3.3 GiB and copies of 1.3 GiB.
  const auto held = take_all_but(4608 * kMiB);
  ASSERT_TRUE(held.ok()) << held.status().message();
  const Outcome narrow = run(words + "narrow");
  ASSERT_EQ(narrow.exit_code, 0) << narrow.text;
  EXPECT_NE(narrow.text.find("has no room for the copies"), std::string::npos) << narrow.text;
  const Outcome same = run("ckpt diff roomy narrow");
  EXPECT_EQ(same.exit_code, 0) << same.text;
}

TEST_F(GpuMemory, WorkersOfOneDeviceAreCountedTogether) {
  const std::string train = "train " + job("llama-125m", "bf16") + " --devices cuda:0 --run-dir ";
  // Room for one of two ranks with its libraries, but not for both.
  const auto held = take_all_but(6 * 1024 * kMiB);
  ASSERT_TRUE(held.ok()) << held.status().message();
  const Outcome one = run(train + "one --parallelism.data_parallel_degree=1");
  EXPECT_EQ(one.exit_code, 0) << one.text;
  const Outcome two = run(train + "two --workers 2");
  EXPECT_EQ(two.exit_code, 3) << two.text;
  EXPECT_NE(two.text.find("2 workers that share it"), std::string::npos) << two.text;
  EXPECT_FALSE(fs::exists(dir_ / "two"));
}

}  // namespace
}  // namespace sgactor::apps
