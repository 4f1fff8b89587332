#include "graph/plan/serial.h"

#include "graph/base/philox.h"
#include "tests/unit/graph/plan/sample_plan.h"

#include <gtest/gtest.h>

namespace sgactor::graph {
namespace {

void expect_same_program(const RankProgram& a, const RankProgram& b) {
  ASSERT_EQ(a.buffers.size(), b.buffers.size());
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    const Buffer& x = a.buffers[i];
    const Buffer& y = b.buffers[i];
    EXPECT_EQ(std::tie(x.name, x.kind, x.bytes, x.num_slots, x.offsets, x.first_use, x.last_use),
              std::tie(y.name, y.kind, y.bytes, y.num_slots, y.offsets, y.first_use, y.last_use));
    EXPECT_EQ(x.type, y.type);
  }
  ASSERT_EQ(a.launches.size(), b.launches.size());
  for (size_t i = 0; i < a.launches.size(); ++i) {
    const Launch& x = a.launches[i];
    const Launch& y = b.launches[i];
    EXPECT_EQ(
        std::tie(x.name, x.kind, x.subgraph, x.phase, x.segment, x.lane, x.outputs, x.workspace),
        std::tie(y.name, y.kind, y.subgraph, y.phase, y.segment, y.lane, y.outputs, y.workspace));
    ASSERT_EQ(x.inputs.size(), y.inputs.size());
    for (size_t k = 0; k < x.inputs.size(); ++k) {
      EXPECT_EQ(std::tie(x.inputs[k].buffer, x.inputs[k].producer, x.inputs[k].edge),
                std::tie(y.inputs[k].buffer, y.inputs[k].producer, y.inputs[k].edge));
    }
  }
  ASSERT_EQ(a.lanes.size(), b.lanes.size());
  for (size_t i = 0; i < a.lanes.size(); ++i) {
    EXPECT_EQ(a.lanes[i].kind, b.lanes[i].kind);
    EXPECT_EQ(a.lanes[i].order, b.lanes[i].order);
  }
  EXPECT_EQ(a.num_micro_batches, b.num_micro_batches);
  EXPECT_EQ(a.arena_bytes, b.arena_bytes);
}

Plan annotated_plan() {
  Plan plan = sample_plan();
  plan.name = "a \"name\"";
  plan.schema_hash = 0xfedcba9876543210ULL;
  plan.flops_per_token = 1.25e12;
  plan.num_parameters = 70'000'000'000;
  plan.ops_before = 100;
  plan.ops_after = 40;
  return plan;
}

TEST(PlanSerialTest, RoundTripsEveryField) {
  const Plan a = annotated_plan();
  const std::string bytes = serialize_plan(a);
  const Result<Plan> read = deserialize_plan(bytes);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const Plan& b = *read;
  EXPECT_EQ(std::tie(a.name, a.schema_hash, a.storage, a.mesh, a.segments, a.flops_per_token,
                     a.num_parameters, a.ops_before, a.ops_after),
            std::tie(b.name, b.schema_hash, b.storage, b.mesh, b.segments, b.flops_per_token,
                     b.num_parameters, b.ops_before, b.ops_after));
  ASSERT_EQ(a.subgraphs.size(), b.subgraphs.size());
  for (size_t i = 0; i < a.subgraphs.size(); ++i) {
    const Subgraph& x = a.subgraphs[i];
    const Subgraph& y = b.subgraphs[i];
    EXPECT_EQ(std::tie(x.name, x.structure_hash, x.places, x.workspace_bytes, x.alias_input,
                       x.flops, x.bytes_moved),
              std::tie(y.name, y.structure_hash, y.places, y.workspace_bytes, y.alias_input,
                       y.flops, y.bytes_moved));
    EXPECT_EQ(x.body, y.body);
  }
  ASSERT_EQ(a.programs.size(), b.programs.size());
  expect_same_program(a.programs[0], b.programs[0]);
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  EXPECT_EQ(b.ranks[0].program, 0);
  const MemoryStats& m = a.memory;
  const MemoryStats& n = b.memory;
  EXPECT_EQ(std::tie(m.naive_bytes, m.planned_bytes, m.lower_bound_bytes, m.activation_peak_bytes,
                     m.parameter_bytes, m.moment_bytes, m.accumulator_bytes),
            std::tie(n.naive_bytes, n.planned_bytes, n.lower_bound_bytes, n.activation_peak_bytes,
                     n.parameter_bytes, n.moment_bytes, n.accumulator_bytes));
  EXPECT_EQ(serialize_plan(b), bytes);
}

TEST(PlanSerialTest, TimeOfCompilingIsNotInTheBytes) {
  Plan plan = annotated_plan();
  const std::string bytes = serialize_plan(plan);
  plan.compile_ms = 12.5;
  EXPECT_EQ(serialize_plan(plan), bytes);
}

TEST(PlanSerialTest, RefusesCutAndForeignBytes) {
  const std::string bytes = serialize_plan(annotated_plan());
  EXPECT_EQ(deserialize_plan("").status().code(), Code::kCorruption);
  EXPECT_EQ(deserialize_plan("not a plan").status().code(), Code::kCorruption);
  for (size_t cut = 1; cut < bytes.size(); cut += 97) {
    EXPECT_FALSE(deserialize_plan(std::string_view(bytes).substr(0, cut)).ok()) << cut;
  }
}

TEST(PlanSerialTest, StandsMutatedBytes) {
  const std::string bytes = serialize_plan(annotated_plan());
  const PhiloxStream draw{17, 0};
  int refused = 0;
  constexpr int kCases = 1500;
  for (uint64_t i = 0; i < kCases; ++i) {
    std::string mutated = bytes;
    const uint64_t edits = 1 + draw.below(4 * i, 4);
    for (uint64_t k = 0; k < edits; ++k) {
      const PhiloxStream edit{18, i * 8 + k};
      mutated[edit.below(0, mutated.size())] = static_cast<char>(edit.below(1, 256));
    }
    // Whatever is let through is a plan that the runtime can run.
    const Result<Plan> plan = deserialize_plan(mutated);
    if (plan.ok()) {
      EXPECT_TRUE(verify_plan(*plan).ok());
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, kCases / 4);
}

TEST(PrintPlanTest, SaysWhatAReaderNeeds) {
  const std::string text = print_plan(annotated_plan());
  for (const char* part :
       {"fedcba9876543210", "parameters 70.00 B", "layer.forward", "embed.update", "arena",
        "lower bound", "lane 0 (compute)", "2 micro-batches a step", "embed.forward@0"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  }
}

}  // namespace
}  // namespace sgactor::graph
