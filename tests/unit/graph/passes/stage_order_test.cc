#include "graph/passes/stage_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace sgactor::graph {
namespace {

StageOrderOptions pipeline(int32_t stages, int32_t chunks, int32_t micro_batches,
                           PipelineSchedule schedule) {
  StageOrderOptions o;
  o.num_stages = stages;
  o.num_micro_batches = micro_batches;
  o.schedule = schedule;
  o.forward_cost.assign(static_cast<size_t>(chunks), 1);
  o.backward_cost.assign(static_cast<size_t>(chunks), 2);
  return o;
}

/// Most micro-batches whose activations a stage holds at one time, counted in its first chunk.
int32_t most_in_flight(const std::vector<StageTask>& order, int32_t num_stages) {
  int32_t now = 0;
  int32_t most = 0;
  for (const StageTask& t : order) {
    if (t.chunk >= num_stages) continue;
    now += t.backward ? -1 : 1;
    most = std::max(most, now);
  }
  return most;
}

/// Each task once, on its stage; runs to the end when stages wait for each other.
void expect_complete(const StageOrderOptions& o, const std::vector<std::vector<StageTask>>& order) {
  const auto num_chunks = static_cast<int32_t>(o.forward_cost.size());
  std::set<std::tuple<int32_t, int32_t, bool>> done;
  std::vector<size_t> next(order.size(), 0);
  const auto ready = [&](const StageTask& t) {
    if (!t.backward) return t.chunk == 0 || done.contains({t.chunk - 1, t.micro_batch, false});
    if (t.chunk + 1 == num_chunks) return done.contains({t.chunk, t.micro_batch, false});
    return done.contains({t.chunk + 1, t.micro_batch, true});
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t s = 0; s < order.size(); ++s) {
      while (next[s] < order[s].size() && ready(order[s][next[s]])) {
        const StageTask& t = order[s][next[s]++];
        EXPECT_EQ(t.chunk % o.num_stages, static_cast<int32_t>(s));
        EXPECT_TRUE(done.emplace(t.chunk, t.micro_batch, t.backward).second);
        moved = true;
      }
    }
  }
  EXPECT_EQ(done.size(),
            size_t{2} * o.forward_cost.size() * static_cast<size_t>(o.num_micro_batches));
}

TEST(StageOrderTest, EveryScheduleOfManyShapesEnds) {
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved}) {
    for (int32_t stages = 1; stages <= 5; ++stages) {
      for (int32_t chunks = stages; chunks <= 3 * stages; ++chunks) {
        for (const int32_t m : {1, 2, 3, 7}) {
          const StageOrderOptions o = pipeline(stages, chunks, m, schedule);
          SCOPED_TRACE(testing::Message() << stages << " stages, " << chunks << " chunks, " << m);
          expect_complete(o, order_stages(o));
        }
      }
    }
  }
}

TEST(StageOrderTest, OneForwardOneBackwardBoundsWhatIsInFlight) {
  const auto order = order_stages(pipeline(4, 4, 16, PipelineSchedule::k1F1B));
  for (int32_t s = 0; s < 4; ++s) {
    EXPECT_EQ(most_in_flight(order[static_cast<size_t>(s)], 4), 4 - s) << "stage " << s;
  }
  const auto gpipe = order_stages(pipeline(4, 4, 16, PipelineSchedule::kGPipe));
  EXPECT_EQ(most_in_flight(gpipe[0], 4), 16);
  const auto& first = gpipe[0];
  const auto backward =
      std::find_if(first.begin(), first.end(), [](const StageTask& t) { return t.backward; });
  EXPECT_EQ(backward - first.begin(), 16);
}

TEST(StageOrderTest, TheLastStageAlternates) {
  const auto order = order_stages(pipeline(3, 3, 5, PipelineSchedule::k1F1B));
  for (size_t i = 0; i < order[2].size(); ++i) EXPECT_EQ(order[2][i].backward, i % 2 == 1);
}

TEST(StageOrderTest, PartsAreBalanced) {
  const std::vector<double> costs = {1, 1, 1, 1, 4};
  EXPECT_EQ(balance_parts(costs, 2), (std::vector<int32_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(balance_parts(costs, 5), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(balance_parts(costs, 1), (std::vector<int32_t>{0, 0, 0, 0, 0}));
  // No part is empty, also where that would be as good.
  EXPECT_EQ(balance_parts(std::vector<double>{9, 0, 0}, 3), (std::vector<int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace sgactor::graph
