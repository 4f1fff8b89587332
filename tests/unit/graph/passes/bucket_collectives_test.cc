// Buckets of collectives: what is joined, what is cut, what stays apart.
#include "graph/passes/bucket_collectives.h"

#include "graph/ir/text.h"
#include "graph/passes/build_update.h"
#include "graph/passes/data_parallel.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/passes/split_stages.h"
#include "tests/unit/graph/passes/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace sgactor::graph {
namespace {

constexpr int64_t kChunk = 16;

/// A step of a small Llama on `ranks` data-parallel ranks, before lanes are made.
Plan plan_step(int32_t ranks, int32_t zero_stage, int32_t micro_batches, int32_t stages = 1) {
  const LlamaConfig config = tiny_config(true, true);
  const DataParallel dp{ranks, zero_stage, kChunk, micro_batches};
  Graph training = *differentiate(*build_llama(config, {2, 5, true}));
  training = *accumulate_microbatches(*apply_data_parallel(training, dp));
  OptimizerOptions optimizer;
  optimizer.norm_chunk = kChunk;
  const auto parameters = *collect_update_parameters(training, llama_parameters(config), dp);
  const Graph update = *build_update(parameters, optimizer, dp);
  Plan plan = *partition_subgraphs(training, update, micro_batches, StorageModel::kNative);
  const Status split = split_stages(plan, {stages, 1, PipelineSchedule::k1F1B, {}});
  EXPECT_TRUE(split.ok()) << split.to_string();
  place_ranks(plan, {stages, ranks, 1});
  return plan;
}

Plan scheduled(Plan plan, int64_t bytes) {
  const Status s = schedule_collectives(plan, {.bucket_bytes = bytes});
  EXPECT_TRUE(s.ok()) << s.to_string();
  return plan;
}

std::vector<const Launch*> launches_of(const Plan& plan, LaunchKind kind) {
  std::vector<const Launch*> found;
  for (const RankProgram& p : plan.programs) {
    for (const Launch& l : p.launches) {
      if (l.kind == kind) found.push_back(&l);
    }
  }
  return found;
}

/// Operand and result of every tensor that travels, in any order.
std::multiset<std::pair<BufferId, BufferId>> pairs_of(const Plan& plan) {
  std::multiset<std::pair<BufferId, BufferId>> pairs;
  for (const Launch& l : plan.programs[0].launches) {
    if (l.kind == LaunchKind::kSubgraph || l.outputs.size() != l.inputs.size()) continue;
    for (size_t i = 0; i < l.inputs.size(); ++i) pairs.emplace(l.inputs[i].buffer, l.outputs[i]);
  }
  return pairs;
}

TEST(BucketCollectives, EveryTensorTravelsOnceWhateverTheSize) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    for (const int32_t micro_batches : {1, 2}) {
      const Plan plain = scheduled(plan_step(2, zero, micro_batches), 0);
      for (const int64_t bytes : {1, 300, 1000, 4000, 1 << 20}) {
        const Plan plan = scheduled(plan_step(2, zero, micro_batches), bytes);
        EXPECT_EQ(pairs_of(plan), pairs_of(plain)) << "ZeRO " << zero << ", " << bytes << " bytes";
        std::set<std::string> names;
        std::set<int32_t> keys;
        for (const Launch& l : plan.programs[0].launches) {
          EXPECT_TRUE(names.insert(l.name).second) << l.name;
          if (l.kind == LaunchKind::kSubgraph) continue;
          EXPECT_TRUE(keys.insert(l.communication.key).second) << l.name;
        }
      }
    }
  }
}

TEST(BucketCollectives, BucketsKeepToTheirSize) {
  constexpr int64_t kBytes = 1000;
  const Plan plan = scheduled(plan_step(2, 0, 1), kBytes);
  bool joined = false;
  for (const Launch* l : launches_of(plan, LaunchKind::kAllReduce)) {
    int64_t bytes = 0;
    for (const LaunchInput& in : l->inputs)
      bytes += plan.programs[0].buffers[static_cast<size_t>(in.buffer)].type.bytes();
    EXPECT_TRUE(bytes <= kBytes || l->inputs.size() == 1) << l->name << ": " << bytes;
    joined = joined || l->name.find('+') != std::string::npos;
  }
  EXPECT_TRUE(joined);
}

TEST(BucketCollectives, ALargerSizeMakesFewerOperations) {
  size_t before = std::numeric_limits<size_t>::max();
  for (const int64_t bytes : {1, 1000, 4000, 1 << 20}) {
    const size_t now =
        launches_of(scheduled(plan_step(2, 0, 1), bytes), LaunchKind::kAllReduce).size();
    EXPECT_LT(now, before) << bytes;
    before = now;
  }
  EXPECT_EQ(before, 1U);
}

/// A sum may start once its gradients are there; one bucket of all waits for the last of them.
TEST(BucketCollectives, ASmallBucketStartsEarlier) {
  const auto first_start = [](const Plan& plan) {
    for (const Lane& lane : plan.programs[0].lanes) {
      if (lane.name == "dp.reduce") return lane.order.front().start;
    }
    return -1;
  };
  const int32_t small = first_start(scheduled(plan_step(2, 0, 1), 1));
  const int32_t large = first_start(scheduled(plan_step(2, 0, 1), 1 << 20));
  EXPECT_GT(small, 0);
  EXPECT_LT(small, large);
}

/// ZeRO 3 holds what one piece reads: joined gathers would hold more. Sums are joined.
TEST(BucketCollectives, GathersForOneUseAreNotJoined) {
  const size_t segments =
      launches_of(scheduled(plan_step(2, 3, 1), 0), LaunchKind::kAllGather).size();
  const Plan plan = scheduled(plan_step(2, 3, 1), 1 << 20);
  EXPECT_EQ(launches_of(plan, LaunchKind::kAllGather).size(), segments);
  for (const Launch* l : launches_of(plan, LaunchKind::kAllGather))
    EXPECT_EQ(l->name.find('+'), std::string::npos) << l->name;
  EXPECT_GT(launches_of(scheduled(plan_step(2, 3, 1), 1), LaunchKind::kAllGather).size(), segments);
}

TEST(BucketCollectives, StagesHaveBucketsOfTheirOwn) {
  const Plan plan = scheduled(plan_step(2, 1, 2, 2), 1 << 20);
  ASSERT_EQ(plan.programs.size(), 2U);
  for (const RankProgram& p : plan.programs) {
    const auto reduces = std::count_if(p.launches.begin(), p.launches.end(), [](const Launch& l) {
      return l.kind == LaunchKind::kReduceScatter;
    });
    EXPECT_EQ(reduces, 1);
  }
}

}  // namespace
}  // namespace sgactor::graph
