// Whether a plan fits a device: what all ranks of a process need together, the stage that needs
// most, what others have taken, and what a backend keeps beside the plan.
#include "apps/sgactor/device.h"

#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/text_sampler.h"
#include "graph/compiler/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace sgactor::apps {
namespace {

/// So many bytes and nothing else.
class SmallDevice final : public kernels::Backend {
 public:
  explicit SmallDevice(int64_t bytes, int64_t free_bytes = 0) {
    info_.device = "small:0";
    info_.memory_bytes = bytes;
    info_.free_bytes = free_bytes;
  }
  /// That has to stay free beside what plans say.
  void keep(int64_t process_bytes, int64_t scratch_bytes) {
    info_.process_bytes = process_bytes;
    info_.scratch_bytes = scratch_bytes;
  }
  [[nodiscard]] const kernels::DeviceInfo& info() const override { return info_; }
  /// Its memory is not the host's.
  void lie_apart() { host_visible_ = false; }
  [[nodiscard]] bool host_visible() const override { return host_visible_; }
  [[nodiscard]] int64_t storage_bytes(const TensorType& type) const override {
    return type.bytes();
  }
  Status write_tensor(std::byte* /*to*/, const TensorType& /*type*/,
                      std::span<const std::byte> /*native*/) override {
    return unsupported("no memory");
  }
  Status read_tensor(std::span<std::byte> /*native*/, const TensorType& /*type*/,
                     const std::byte* /*from*/) override {
    return unsupported("no memory");
  }
  Result<std::unique_ptr<kernels::Executable>> compile(
      const kernels::CompileRequest& /*request*/) override {
    return unsupported("no kernels");
  }
  Result<std::unique_ptr<kernels::DeviceMemory>> allocate(int64_t /*bytes*/,
                                                          std::string_view /*label*/) override {
    return unsupported("no memory");
  }
  Result<std::unique_ptr<kernels::Stream>> create_stream() override {
    return unsupported("no streams");
  }
  [[nodiscard]] kernels::AllocationStats allocation_stats() const override { return {}; }

 private:
  kernels::DeviceInfo info_;
  bool host_visible_ = true;
};

graph::CompileOptions options_of(graph::MeshShape mesh) {
  graph::CompileOptions options;
  options.mesh = mesh;
  options.micro_batch_size = 1;
  options.seq_len = 16;
  return options;
}

graph::Plan plan_of(graph::MeshShape mesh) {
  return graph::compile_training(*graph::llama_preset("llama-tiny"), options_of(mesh))->plan;
}

/// Of the worker that holds most.
int64_t most_of(const graph::Plan& plan, int32_t workers, const HeldBeside& beside = {}) {
  int64_t most = 0;
  for (const auto& ranks : deal_ranks(plan, workers))
    most = std::max(most, held_bytes(plan, ranks, beside));
  return most;
}

void expect_refused(const Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), Code::kOutOfMemory);
  EXPECT_EQ(exit_code(status), kExitNoDevice) << status.to_string();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  for (const std::string& part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message() << "\n" << part;
}

TEST(DeviceMemoryTest, RanksOfOneProcessNeedTheirArenasTogether) {
  const graph::Plan plan = plan_of({1, 4, 1});
  const int64_t arena = plan.programs[0].arena_bytes;
  EXPECT_EQ(most_of(plan, 1), 4 * arena);
  EXPECT_EQ(most_of(plan, 2), 2 * arena);
  EXPECT_EQ(most_of(plan, 3), 2 * arena);
  EXPECT_EQ(most_of(plan, 4), arena);
  const SmallDevice three(3 * arena);
  EXPECT_TRUE(check_memory(plan, three, {.workers = 2, .devices = 0}).ok());
  expect_refused(check_memory(plan, three),
                 {"4 ranks of one process", "small:0", "training.micro_batch_size",
                  "training.recompute", "training.memory_budget", "parallelism.zero_stage",
                  "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"});
  EXPECT_TRUE(check_memory(plan, SmallDevice(0)).ok()) << "of no known size";
}

TEST(DeviceMemoryTest, WhatIsTakenByOthersIsNotThere) {
  const graph::Plan plan = plan_of({1, 1, 1});
  const int64_t arena = plan.programs[0].arena_bytes;
  EXPECT_TRUE(check_memory(plan, SmallDevice(8 * arena, arena)).ok());
  const SmallDevice taken(8 * arena, arena - 1);
  expect_refused(check_memory(plan, taken), {"the plan needs ", "small:0 has ", " free of "});
  EXPECT_TRUE(check_memory(plan, taken, {.whole = true}).ok()) << "who has it gives it back";
  EXPECT_TRUE(check_memory(plan, taken, {.devices = 0}).ok()) << "another device like this one";
  // A backend that says what is free and no more.
  EXPECT_TRUE(check_memory(plan, SmallDevice(0, arena)).ok());
  expect_refused(check_memory(plan, SmallDevice(0, arena - 1)), {" free; less take"});
}

TEST(DeviceMemoryTest, WorkersOfADeviceShareIt) {
  const graph::Plan plan = plan_of({1, 4, 1});
  const int64_t arena = plan.programs[0].arena_bytes;
  const SmallDevice three(8 * arena, 3 * arena);
  expect_refused(check_memory(plan, three, {.workers = 4}), {" for the 4 workers that share it"});
  EXPECT_TRUE(check_memory(plan, three, {.workers = 4, .devices = 2}).ok());
  EXPECT_TRUE(check_memory(plan, three, {.workers = 4, .devices = 8}).ok());
  // The first of two devices gets two workers of three, and one of these has two ranks.
  EXPECT_TRUE(check_memory(plan, three, {.workers = 3, .devices = 2}).ok());
  const SmallDevice two(2 * arena, 2 * arena);
  expect_refused(check_memory(plan, two, {.workers = 3, .devices = 2}), {"2 workers"});
  EXPECT_TRUE(check_memory(plan, two, {.workers = 4, .devices = 2}).ok());
}

TEST(DeviceMemoryTest, OfOtherDevicesOnlyTheSizeIsKnown) {
  graph::Plan plan = plan_of({2, 1, 1});
  const int64_t first = plan.programs[0].arena_bytes;
  const int64_t second = plan.programs[1].arena_bytes = 2 * first;
  // What others have taken of the first device says nothing of the second.
  EXPECT_TRUE(check_memory(plan, SmallDevice(second, first), {.workers = 2, .devices = 2}).ok());
  expect_refused(check_memory(plan, SmallDevice(second - 1, first), {.workers = 2, .devices = 2}),
                 {"a device like small:0"});
}

TEST(DeviceMemoryTest, ABackendKeepsRoomForItselfAndForEachRank) {
  const graph::Plan plan = plan_of({1, 2, 1});
  const int64_t arena = plan.programs[0].arena_bytes;
  SmallDevice device(100 * arena, 2 * arena + 5000);
  device.keep(1000, 2000);
  EXPECT_TRUE(check_memory(plan, device).ok());
  device.keep(1001, 2000);
  expect_refused(check_memory(plan, device), {" of scratch and libraries"});
  // Two processes on the device have libraries of their own.
  device.keep(500, 2000);
  EXPECT_TRUE(check_memory(plan, device, {.workers = 2}).ok());
  device.keep(501, 2000);
  EXPECT_FALSE(check_memory(plan, device, {.workers = 2}).ok());
}

TEST(DeviceMemoryTest, CheckpointsAreWrittenFromACopyOfTheState) {
  const graph::Plan plan = plan_of({1, 2, 1});
  const HeldBeside copies{.snapshots = true};
  const int64_t arena = held_bytes(plan, {1});
  EXPECT_EQ(held_bytes(plan, {1}, copies), arena) << "the first replica writes";
  const int64_t copy = held_bytes(plan, {0}, copies) - arena;
  EXPECT_GE(copy, state_bytes(plan, 0));
  EXPECT_LT(copy,
            state_bytes(plan, 0) + 256 * static_cast<int64_t>(plan.programs[0].buffers.size()));
  EXPECT_EQ(held_bytes(plan, {0, 1}, copies), 2 * arena + copy);
  EXPECT_TRUE(check_memory(plan, SmallDevice(2 * arena + copy), {.beside = copies}).ok());
  expect_refused(check_memory(plan, SmallDevice(2 * arena + copy - 1), {.beside = copies}),
                 {" of copies for checkpoints"});
  // They go to the host's memory where a device apart has no room for them.
  SmallDevice apart(2 * arena);
  apart.lie_apart();
  EXPECT_TRUE(check_memory(plan, apart, {.beside = copies}).ok());
}

TEST(DeviceMemoryTest, StepsAreVerifiedInAnotherArena) {
  const graph::Plan plan = plan_of({1, 2, 1});
  const int64_t arena = held_bytes(plan, {1});
  const int64_t both = held_bytes(plan, {1}, {.verifies = true});
  EXPECT_GT(both, arena);
  EXPECT_LT(both, 2 * arena) << "parameters are shared";
}

TEST(DeviceMemoryTest, TheLargestStageCounts) {
  const graph::Plan plan = plan_of({2, 1, 1});
  ASSERT_EQ(plan.programs.size(), 2U);
  const int64_t first = plan.programs[0].arena_bytes;
  const int64_t second = plan.programs[1].arena_bytes;
  ASSERT_NE(first, second);
  EXPECT_EQ(most_of(plan, 2), std::max(first, second));
  EXPECT_EQ(most_of(plan, 1), first + second);
}

TEST(DeviceMemoryTest, ValidationLiesBesideTheFirstRank) {
  const graph::Plan plan = plan_of({1, 2, 1});
  const graph::ForwardOptions forward{64, 16, true};
  const auto validation =
      graph::compile_forward(*graph::llama_preset("llama-tiny"), forward, options_of({1, 2, 1}));
  ASSERT_TRUE(validation.ok()) << validation.status().to_string();
  const int64_t arena = plan.programs[0].arena_bytes;
  const HeldBeside beside{.validation = &validation->plan};
  const int64_t both = most_of(plan, 1, beside);
  EXPECT_GT(both, 2 * arena);
  EXPECT_LT(both, 2 * arena + validation->plan.programs[0].arena_bytes) << "parameters are shared";
  EXPECT_EQ(most_of(plan, 2, beside), both - arena);
}

TEST(DeviceMemoryTest, NobodyValidatesWhereParametersAreCut) {
  graph::CompileOptions options = options_of({1, 2, 1});
  options.zero_stage = 3;
  const auto plan = graph::compile_training(*graph::llama_preset("llama-tiny"), options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const graph::ForwardOptions forward{64, 16, true};
  const auto validation =
      graph::compile_forward(*graph::llama_preset("llama-tiny"), forward, options_of({1, 2, 1}));
  ASSERT_TRUE(validation.ok());
  EXPECT_EQ(most_of(plan->plan, 1, {.validation = &validation->plan}), most_of(plan->plan, 1));
}

/// Opens a device that has a little more memory free each time.
struct Freeing {
  kernels::BackendTable table;
  int64_t total, free_bytes, step;
  int opened = 0;
  Freeing(int64_t of_all, int64_t at_first, int64_t each_time)
      : total(of_all), free_bytes(at_first), step(each_time) {
    table.add({"small",
               [this](const kernels::BackendOptions&) -> Result<std::unique_ptr<kernels::Backend>> {
                 const int64_t now = free_bytes + step * opened++;
                 return std::unique_ptr<kernels::Backend>(
                     std::make_unique<SmallDevice>(total, now));
               },
               ""});
  }
  Status await(const graph::Plan& plan, std::unique_ptr<kernels::Backend>& backend) {
    backend = std::move(*create_device(table, {"small", {}}));
    return await_memory(table, {"small", {}}, plan, {0}, {}, 20, backend);
  }
};

TEST(DeviceMemoryTest, AWorkerWaitsForWhatADeadOneHeld) {
  const graph::Plan plan = plan_of({1, 1, 1});
  const int64_t arena = plan.programs[0].arena_bytes;
  std::unique_ptr<kernels::Backend> backend;
  Freeing freeing(2 * arena, arena - 3, 1);
  EXPECT_TRUE(freeing.await(plan, backend).ok());
  EXPECT_EQ(freeing.opened, 4);
  EXPECT_EQ(backend->info().free_bytes, arena) << "the one that was opened last";
  Freeing stays(2 * arena, arena - 1, 0);
  expect_refused(stays.await(plan, backend), {" free of "});
  EXPECT_GT(stays.opened, 5);
  ASSERT_NE(backend, nullptr);
  Freeing never(arena - 1, arena - 1, 0);
  expect_refused(never.await(plan, backend), {"small:0"});
  EXPECT_EQ(never.opened, 1) << "waiting is of no use";
}

TEST(DeviceMemoryTest, GenerateIsAskedBeforeItAllocates) {
  class Nothing final : public transport::StateSource {
   public:
    Status load(const std::string&, const TensorType&, std::span<std::byte>) const override {
      return unsupported("no state");
    }
  };
  const Nothing state;
  const graph::LlamaConfig config = *graph::llama_preset("llama-tiny");
  SmallDevice device(int64_t{1} << 40);
  EXPECT_TRUE(TextSampler(config, 128, device, state).check_memory(300).ok());
  SmallDevice small(int64_t{1} << 20);
  expect_refused(TextSampler(config, 128, small, state).check_memory(1), {"small:0", "--context"});
}

}  // namespace
}  // namespace sgactor::apps
