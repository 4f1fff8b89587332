// The bench of `sgactor bench actors` counts what it says; the figures themselves are in
// docs/benchmarks.
#include "actors/runtime/actor_bench.h"

#include "kernels/symbolic/symbolic_backend.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

TEST(ActorBench, PassesEveryHandleThroughTheChain) {
  const auto backend = kernels::create_symbolic_backend({});
  ASSERT_TRUE(backend.ok());
  for (const int32_t threads : {1, 2}) {
    const auto result = bench_actor_chain(**backend, 64, 1000, 64, threads);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_EQ(result->num_handles, 64 * 1024);  // whole windows
    EXPECT_GT(result->num_messages, 3 * result->num_handles);
    EXPECT_GT(result->seconds, 0);
    std::printf("%d threads: %.0f handles/s, %.0f messages/s through 64 subgraph actors\n", threads,
                result->handles_per_second, result->messages_per_second);
  }
}

TEST(ActorBench, RefusesNumbersThatMakeNoChain) {
  const auto backend = kernels::create_symbolic_backend({});
  ASSERT_TRUE(backend.ok());
  EXPECT_FALSE(bench_actor_chain(**backend, 1, 10, 1).ok());
  EXPECT_FALSE(bench_actor_chain(**backend, 4, 0, 1).ok());
  EXPECT_FALSE(bench_actor_chain(**backend, 4, 10, 0).ok());
}

}  // namespace
}  // namespace sgactor::actors
