// Whether a plan fits a device: what all ranks of a process need together, and the stage that needs
// most.
#include "apps/sgactor/device.h"

#include "graph/compiler/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::apps {
namespace {

/// So many bytes and nothing else.
class SmallDevice final : public kernels::Backend {
 public:
  explicit SmallDevice(int64_t bytes) {
    info_.device = "small:0";
    info_.memory_bytes = bytes;
  }
  [[nodiscard]] const kernels::DeviceInfo& info() const override { return info_; }
  [[nodiscard]] bool host_visible() const override { return true; }
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

TEST(DeviceMemoryTest, RanksOfOneProcessNeedTheirArenasTogether) {
  const graph::Plan plan = plan_of({1, 4, 1});
  const int64_t arena = plan.programs[0].arena_bytes;
  EXPECT_EQ(hosted_bytes(plan, nullptr, 1), 4 * arena);
  EXPECT_EQ(hosted_bytes(plan, nullptr, 2), 2 * arena);
  EXPECT_EQ(hosted_bytes(plan, nullptr, 3), 2 * arena);
  EXPECT_EQ(hosted_bytes(plan, nullptr, 4), arena);
  const SmallDevice three(3 * arena);
  EXPECT_TRUE(check_memory(plan, three, nullptr, 2).ok());
  const Status refused = check_memory(plan, three, nullptr, 1);
  EXPECT_EQ(refused.code(), Code::kOutOfMemory);
  EXPECT_EQ(refused.scope(), Scope::kDevice);
  for (const char* part :
       {"4 ranks of one process", "small:0", "training.micro_batch_size", "training.recompute",
        "training.memory_budget", "parallelism.zero_stage", "parallelism.tensor_parallel_degree",
        "parallelism.pipeline_parallel_degree"}) {
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(check_memory(plan, SmallDevice(0), nullptr, 1).ok()) << "of no known size";
}

TEST(DeviceMemoryTest, TheLargestStageCounts) {
  const graph::Plan plan = plan_of({2, 1, 1});
  ASSERT_EQ(plan.programs.size(), 2U);
  const int64_t first = plan.programs[0].arena_bytes;
  const int64_t second = plan.programs[1].arena_bytes;
  ASSERT_NE(first, second);
  EXPECT_EQ(hosted_bytes(plan, nullptr, 2), std::max(first, second));
  EXPECT_EQ(hosted_bytes(plan, nullptr, 1), first + second);
}

TEST(DeviceMemoryTest, ValidationLiesBesideTheFirstRank) {
  const graph::Plan plan = plan_of({1, 2, 1});
  const graph::ForwardOptions forward{64, 16, true};
  const auto validation =
      graph::compile_forward(*graph::llama_preset("llama-tiny"), forward, options_of({1, 2, 1}));
  ASSERT_TRUE(validation.ok()) << validation.status().to_string();
  const int64_t arena = plan.programs[0].arena_bytes;
  const int64_t both = hosted_bytes(plan, &validation->plan, 1);
  EXPECT_GT(both, 2 * arena);
  EXPECT_LT(both, 2 * arena + validation->plan.programs[0].arena_bytes) << "parameters are shared";
  EXPECT_EQ(hosted_bytes(plan, &validation->plan, 2), both - arena);
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
  EXPECT_EQ(hosted_bytes(plan->plan, &validation->plan, 1), hosted_bytes(plan->plan, nullptr, 1));
}

}  // namespace
}  // namespace sgactor::apps
