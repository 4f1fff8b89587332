// Plans for meshes: what the verifier refuses, and what a simulated step shows.
#include "graph/compiler/pipeline.h"
#include "graph/compiler/simulate_step.h"
#include "graph/plan/program_order.h"
#include "graph/plan/serial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace sgactor::graph {
namespace {

Result<Compiled> compile(MeshShape mesh, int32_t zero, int32_t micro_batches = 2,
                         bool choose_buckets = true) {
  CompileOptions o;
  o.choose_buckets = choose_buckets;
  o.mesh = mesh;
  o.zero_stage = zero;
  o.num_micro_batches = micro_batches;
  o.micro_batch_size = 1;
  o.seq_len = 16;
  return compile_training(*llama_preset("llama-tiny"), o);
}

Launch* find_launch(Plan& plan, LaunchKind kind, size_t* program = nullptr) {
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    for (Launch& l : plan.programs[p].launches) {
      if (l.kind != kind) continue;
      if (program != nullptr) *program = p;
      return &l;
    }
  }
  return nullptr;
}

TEST(MeshPlanTest, RoundTripsThroughItsWireForm) {
  const Result<Compiled> compiled = compile({2, 2, 2}, 3);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const std::string bytes = serialize_plan(compiled->plan);
  const Result<Plan> back = deserialize_plan(bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(serialize_plan(*back), bytes);
  EXPECT_EQ(back->groups, compiled->plan.groups);
  EXPECT_EQ(back->zero_stage, 3);
}

TEST(MeshPlanTest, GroupsFollowTheMesh) {
  const Result<Compiled> compiled = compile({2, 3, 2}, 1);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const Plan& plan = compiled->plan;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const size_t degree = plan.groups[g].axis == MeshAxis::kDp ? 3 : 2;
    for (int32_t r = 0; r < plan.mesh.num_ranks(); ++r) {
      const std::vector<int32_t> members = group_members(plan, static_cast<int32_t>(g), r);
      EXPECT_EQ(members.size(), degree) << plan.groups[g].name;
      EXPECT_EQ(std::count(members.begin(), members.end(), r), 1);
    }
  }
  EXPECT_EQ(rank_at(plan, 1, 2, 0), 10);
  EXPECT_EQ(rank_at(plan, 2, 0, 0), -1);
}

TEST(MeshPlanTest, TheVerifierFindsWhatWouldHangOrMix) {
  const Result<Compiled> compiled = compile({2, 2, 1}, 3);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const std::function<void(Plan&)> faults[] = {
      // A send that nobody receives, and a receive that nobody sends.
      [](Plan& p) { find_launch(p, LaunchKind::kSend)->communication.key += 100000; },
      [](Plan& p) { find_launch(p, LaunchKind::kRecv)->communication.peer = 0; },
      // Members of a group with other programs.
      [](Plan& p) { p.ranks[1].program = 1 - p.ranks[1].program; },
      // A firing that starts before what it reads.
      [](Plan& p) {
        for (Lane& lane : p.programs[0].lanes) {
          for (Firing& f : lane.order) f.start = 0;
        }
      },
      // A lane of another group, a group that does not exist, a lane without one.
      [](Plan& p) { p.programs[0].lanes[1].group = 1 - p.programs[0].lanes[1].group; },
      [](Plan& p) { find_launch(p, LaunchKind::kAllGather)->communication.group = 9; },
      [](Plan& p) { p.programs[0].lanes[1].group = -1; },
      // Two firings of a lane in another order than their starts.
      [](Plan& p) {
        auto& order = p.programs[0].lanes[1].order;
        std::swap(order.front(), order.back());
      },
      // Pieces that do not hold the whole.
      [](Plan& p) {
        size_t program = 0;
        const Launch* l = find_launch(p, LaunchKind::kAllGather, &program);
        Buffer& b = p.programs[program].buffers[static_cast<size_t>(l->inputs[0].buffer)];
        b.type.shape = Shape{1};
        b.bytes = 4;
      },
      [](Plan& p) {
        p.groups[0].coordinates = {0, 7};
      },
  };
  size_t number = 0;
  for (const auto& fault : faults) {
    Plan plan = compiled->plan;
    fault(plan);
    EXPECT_FALSE(verify_plan(plan).ok()) << "fault " << number;
    ++number;
  }
}

TEST(MeshPlanTest, GathersRunAheadAndReductionsStartEarly) {
  const Result<Compiled> compiled = compile({1, 4, 1}, 3, 1, false);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const RankProgram& program = compiled->plan.programs[0];
  int32_t last_backward = 0;
  std::vector<int32_t> position(program.launches.size(), 0);
  for (size_t i = 0; i < program.lanes[0].order.size(); ++i) {
    const LaunchId l = program.lanes[0].order[i].launch;
    position[static_cast<size_t>(l)] = static_cast<int32_t>(i);
    if (program.launches[static_cast<size_t>(l)].phase == Phase::kBackward) {
      last_backward = static_cast<int32_t>(i);
    }
  }
  int num_early = 0;
  for (size_t lane = 1; lane < program.lanes.size(); ++lane) {
    for (const Firing& f : program.lanes[lane].order) {
      const Launch& l = program.launches[static_cast<size_t>(f.launch)];
      if (l.kind == LaunchKind::kReduceScatter && l.phase == Phase::kBackward) {
        num_early += f.start <= last_backward ? 1 : 0;
      }
      if (l.kind != LaunchKind::kAllGather || l.phase == Phase::kReduce) continue;
      for (const Launch& reader : program.launches) {
        for (const LaunchInput& in : reader.inputs) {
          if (in.producer != f.launch) continue;
          const int32_t at = position[static_cast<size_t>(&reader - program.launches.data())];
          // While the launch before its reader runs, or earlier.
          EXPECT_LE(f.start, at) << l.name;
        }
      }
    }
  }
  EXPECT_GE(num_early, 4);
}

constexpr const char* kFourDevices =
    "network 1e9 1e-5\nhost a 1e10 1e-6\ndevice x 1000000000000 1e12 1e11\n"
    "device x 1000000000000 1e12 1e11\ndevice x 1000000000000 1e12 1e11\n"
    "device x 1000000000000 1e12 1e11\n";

TEST(SimulateStepTest, KeepsEveryOrderAndHidesCommunication) {
  const Result<ClusterSpec> cluster = parse_cluster(kFourDevices);
  ASSERT_TRUE(cluster.ok()) << cluster.status().to_string();
  for (const MeshShape mesh : {MeshShape{1, 4, 1}, MeshShape{2, 2, 1}, MeshShape{4, 1, 1}}) {
    const Result<Compiled> compiled = compile(mesh, mesh.dp > 1 ? 3 : 0, 4);
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    const Plan& plan = compiled->plan;
    const Result<SimulatedStep> step = simulate_step(plan, *cluster);
    ASSERT_TRUE(step.ok()) << step.status().to_string();
    ASSERT_EQ(step->ranks.size(), static_cast<size_t>(mesh.pp));
    for (const SimulatedRank& rank : step->ranks) {
      const auto number = static_cast<size_t>(plan.ranks[static_cast<size_t>(rank.rank)].program);
      size_t planned = 0;
      for (const Lane& lane : plan.programs[number].lanes) planned += lane.order.size();
      EXPECT_EQ(rank.firings.size(), planned);
    }
    EXPECT_GE(step->step_s, step->compute_s);
    EXPECT_GE(step->overlap, 0);
    EXPECT_LE(step->overlap, 1);
    EXPECT_NE(simulated_trace(plan, *step).find("rank 0 lane 0"), std::string::npos);
  }
}

TEST(SimulateStepTest, RefusesTooSmallAClusterAndSlowsWithTheLink) {
  const Result<ClusterSpec> cluster = parse_cluster(kFourDevices);
  ASSERT_TRUE(cluster.ok());
  const Result<Compiled> eight = compile({2, 4, 1}, 1);
  ASSERT_TRUE(eight.ok());
  const Result<SimulatedStep> refused = simulate_step(eight->plan, *cluster);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("8 logical ranks"), std::string::npos);
  const Result<Compiled> four = compile({1, 4, 1}, 3);
  ClusterSpec slow = *cluster;
  slow.hosts[0].link.bytes_per_s /= 1000;
  EXPECT_GT(simulate_step(four->plan, slow)->step_s, simulate_step(four->plan, *cluster)->step_s);
}

/// Every stage tells every other its part of the gradient's norm.
TEST(MeshPlanTest, ManyStagesNeedFewLanes) {
  LlamaConfig model = *llama_preset("llama-tiny");
  model.num_hidden_layers = 40;
  model.hidden_size = 16;
  model.intermediate_size = 32;
  model.num_attention_heads = model.num_key_value_heads = 2;
  model.head_dim = 8;
  CompileOptions o;
  o.mesh = {40, 1, 1};
  o.num_micro_batches = 2;
  o.micro_batch_size = 1;
  o.seq_len = 8;
  const Result<Compiled> compiled = compile_training(model, o);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  ASSERT_EQ(compiled->plan.programs.size(), 40U);
  for (const RankProgram& program : compiled->plan.programs) EXPECT_LE(program.lanes.size(), 10U);
}

/// Where micro-batches overlap, slots share bytes in time: no bound counts them all everywhere.
TEST(MeshPlanTest, NoPlanTakesLessThanItsBound) {
  for (const MeshShape mesh : {MeshShape{4, 1, 1}, MeshShape{2, 2, 1}, MeshShape{1, 4, 1}}) {
    for (const int32_t zero : {0, 3}) {
      const Result<Compiled> compiled = compile(mesh, zero, 8);
      ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
      const MemoryStats& m = compiled->plan.memory;
      EXPECT_LE(m.lower_bound_bytes, m.planned_bytes) << mesh.pp << " " << mesh.dp << " " << zero;
      EXPECT_GE(m.lower_bound_bytes, m.planned_bytes / 2) << mesh.pp << " " << mesh.dp;
    }
  }
}

}  // namespace
}  // namespace sgactor::graph
