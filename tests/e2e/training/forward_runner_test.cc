#include "actors/runtime/training.h"
#include "graph/models/llama.h"
#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

using testing_support::bits;
using testing_support::TrainingRig;

TEST(ForwardRunner, GivesTheSameEachTimeAndDependsOnTheTokens) {
  TrainingRig::Options options;
  options.backend = "cpu";
  options.validation = true;
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  const kernels::AllocationStats before = (*rig)->backend->allocation_stats();
  {
    auto runner = ForwardRunner::create((*rig)->validation_plan, *(*rig)->backend, *(*rig)->state);
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    const auto n = static_cast<size_t>(options.micro_batch_size * options.seq_len);
    std::vector<int32_t> tokens(n, 3), targets(n, 5);
    const auto first = (*runner)->run(tokens, targets);
    const auto again = (*runner)->run(tokens, targets);
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    ASSERT_EQ(first->size(), 1U);
    EXPECT_EQ(bits(*first), bits(*again));
    EXPECT_NEAR(first->at(0), 4.16, 0.3);  // about log(64) before training
    tokens[0] = 9;
    const auto other = (*runner)->run(tokens, targets);
    ASSERT_TRUE(other.ok());
    EXPECT_NE(bits(*first), bits(*other));
    EXPECT_FALSE((*runner)->run(std::span(tokens).first(3), targets).ok());
    tokens[0] = 64;
    const auto outside = (*runner)->run(tokens, targets);
    ASSERT_FALSE(outside.ok());
    EXPECT_EQ(outside.status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ((*rig)->backend->allocation_stats().live_bytes, before.live_bytes);
}

}  // namespace
}  // namespace sgactor::actors
