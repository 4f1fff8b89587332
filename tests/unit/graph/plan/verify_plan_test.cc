// Each rule of verify_plan, broken alone in a good plan.
#include "graph/plan/plan.h"
#include "tests/unit/graph/plan/sample_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace sgactor::graph {
namespace {

class Editor {
 public:
  explicit Editor(Plan& plan) : plan(plan), program(plan.programs[0]) {}

  Launch& launch(std::string_view name) {
    return program.launches[static_cast<size_t>(find_launch(plan, name))];
  }
  Buffer& buffer(std::string_view name) {
    return program.buffers[static_cast<size_t>(find_buffer(plan, name))];
  }
  Subgraph& subgraph(std::string_view launch_name) {
    return plan.subgraphs[static_cast<size_t>(launch(launch_name).subgraph)];
  }
  LaunchInput& input(std::string_view launch_name, std::string_view buffer_name) {
    for (LaunchInput& input : launch(launch_name).inputs) {
      if (input.buffer == find_buffer(plan, buffer_name)) return input;
    }
    SGA_CHECK(false, "no such input");
  }
  std::vector<Firing>& order() { return program.lanes[0].order; }

  Plan& plan;
  RankProgram& program;
};

struct Break {
  const char* name;
  std::function<void(Editor&)> edit;
  const char* message;  ///< part of the error
};

constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();

std::vector<Break> mesh_and_subgraph_breaks() {
  return {
      {"storage", [](Editor& e) { e.plan.storage = static_cast<StorageModel>(9); }, "storage"},
      {"mesh_zero", [](Editor& e) { e.plan.mesh.dp = 0; }, "mesh 1 x 0 x 1"},
      {"mesh_huge",
       [](Editor& e) {
         e.plan.mesh = {kHuge, kHuge, kHuge};
       },
       "mesh"},
      {"rank_count", [](Editor& e) { e.plan.ranks.push_back({}); }, "2 ranks placed"},
      {"rank_place", [](Editor& e) { e.plan.ranks[0].tp = 1; }, "coordinates"},
      {"rank_taken",
       [](Editor& e) {
         e.plan.mesh.dp = 2;
         e.plan.ranks.push_back({});
       },
       "taken"},
      {"rank_program", [](Editor& e) { e.plan.ranks[0].program = 1; }, "program 1"},
      {"body", [](Editor& e) { e.subgraph("head.forward").body.mutable_op(0).operands[0] = 12345; },
       "head.forward"},
      {"alias_count", [](Editor& e) { e.subgraph("head.forward").alias_input.clear(); }, "alias"},
      {"alias_range", [](Editor& e) { e.subgraph("head.forward").alias_input[0] = 99; },
       "updates input 99"},
      {"alias_type",
       [](Editor& e) {
         for (int32_t& a : e.subgraph("layer.0.backward").alias_input) {
           if (a >= 0) a = 0;
         }
       },
       "updates input 0"},
      {"negative_bytes", [](Editor& e) { e.subgraph("head.forward").bytes_moved = -1; },
       "negative"},
  };
}

std::vector<Break> buffer_breaks() {
  return {
      {"buffer_kind", [](Editor& e) { e.buffer("embed").kind = static_cast<BufferKind>(77); },
       "unknown kind"},
      {"buffer_type",
       [](Editor& e) {
         e.buffer("embed").type.shape = Shape{-1, 4};
       },
       "embed"},
      {"buffer_bytes", [](Editor& e) { e.buffer("embed").bytes = 4; }, "4 bytes for"},
      {"persistent_slots", [](Editor& e) { e.buffer("embed").num_slots = 2; }, "2 slots"},
      {"too_many_slots", [](Editor& e) { e.buffer("tokens").num_slots = 3; }, "3 slots"},
      {"no_slot", [](Editor& e) { e.buffer("tokens").num_slots = 0; }, "0 slots"},
      {"live_range", [](Editor& e) { e.buffer("embed").last_use = 10000; }, "live range"},
      {"live_range_reversed",
       [](Editor& e) {
         e.buffer("layer.1.forward:0").first_use = 5;
         e.buffer("layer.1.forward:0").last_use = 3;
       },
       "live range"},
  };
}

std::vector<Break> launch_breaks() {
  return {
      {"launch_kind",
       [](Editor& e) { e.launch("head.forward").kind = static_cast<LaunchKind>(50); },
       "unknown kind"},
      {"communication_with_subgraph",
       [](Editor& e) { e.launch("head.forward").kind = LaunchKind::kAllReduce; },
       "names a subgraph"},
      {"launch_phase", [](Editor& e) { e.launch("head.forward").phase = static_cast<Phase>(9); },
       "unknown phase"},
      {"launch_segment", [](Editor& e) { e.launch("head.forward").segment = -1; }, "segment -1"},
      {"launch_lane", [](Editor& e) { e.launch("head.forward").lane = 1; }, "lane 1"},
      {"launch_subgraph", [](Editor& e) { e.launch("head.forward").subgraph = 99; }, "subgraph 99"},
      {"input_buffer", [](Editor& e) { e.launch("head.forward").inputs[0].buffer = 4000; },
       "input buffer 4000"},
      {"input_twice",
       [](Editor& e) {
         auto& inputs = e.launch("layer.0.update").inputs;
         inputs[1].buffer = inputs[0].buffer;
       },
       "bound to two inputs"},
      {"producer_range", [](Editor& e) { e.launch("layer.0.forward").inputs[0].producer = -7; },
       "producer -7"},
      {"output_buffer", [](Editor& e) { e.launch("head.forward").outputs[0] = -1; },
       "output buffer -1"},
      {"workspace_kind", [](Editor& e) { e.launch("head.forward").workspace = 0; }, "no workspace"},
      {"workspace_shared",
       [](Editor& e) { e.launch("head.forward").workspace = e.launch("embed.forward").workspace; },
       "share a workspace"},
      {"signature_count", [](Editor& e) { e.launch("head.forward").inputs.pop_back(); },
       "its subgraph has"},
      {"signature_type",
       [](Editor& e) { e.input("layer.0.forward", "w.0").buffer = find_buffer(e.plan, "embed"); },
       "buffer \"embed\" is"},
      {"signature_kind",
       [](Editor& e) { e.input("layer.0.forward", "w.0").buffer = find_buffer(e.plan, "m/w.0"); },
       "parameter"},
      {"alias_binding",
       [](Editor& e) {
         for (BufferId& id : e.launch("layer.0.backward").outputs) {
           if (id == find_buffer(e.plan, "grad/w.0")) id = find_buffer(e.plan, "grad/w.1");
         }
       },
       "against its aliases"},
  };
}

std::vector<Break> edge_breaks() {
  return {
      {"wrong_edge", [](Editor& e) { e.input("layer.0.forward", "w.0").edge = EdgeKind::kBatch; },
       "wrong kind of edge"},
      {"state_with_producer", [](Editor& e) { e.input("layer.0.forward", "w.0").producer = 0; },
       "unexpected producer"},
      {"wrong_producer",
       [](Editor& e) {
         e.input("layer.0.forward", "embed.forward:0").producer =
             find_launch(e.plan, "layer.1.forward");
       },
       "does not write it"},
      {"no_producer",
       [](Editor& e) { e.input("layer.0.forward", "embed.forward:0").producer = kNoLaunch; },
       "does not write it"},
      {"accumulator_read_early",
       [](Editor& e) {
         e.input("layer.0.reduce", "grad/w.0").edge = EdgeKind::kState;
         e.input("layer.0.reduce", "grad/w.0").producer = kNoLaunch;
       },
       "wrong kind of edge"},
      {"two_writers",
       [](Editor& e) {
         e.launch("layer.1.forward").outputs[0] = e.launch("layer.0.forward").outputs[0];
       },
       "second launch writes it"},
      {"parameter_written_early",
       [](Editor& e) { e.launch("layer.0.update").phase = Phase::kReduce; }, "before the commit"},
      {"accumulator_written_late",
       [](Editor& e) { e.launch("layer.0.backward").phase = Phase::kReduce; },
       "after the micro-batches"},
  };
}

std::vector<Break> order_breaks() {
  return {
      {"no_micro_batch", [](Editor& e) { e.program.num_micro_batches = 0; }, "no micro-batch"},
      {"no_lane", [](Editor& e) { e.program.lanes.clear(); }, "no compute lane"},
      {"lane_kind", [](Editor& e) { e.program.lanes[0].kind = LaneKind::kCopy; },
       "no compute lane"},
      {"lane_unknown",
       [](Editor& e) {
         e.program.lanes.push_back({static_cast<LaneKind>(200), {}});
       },
       "unknown kind"},
      {"many_lanes", [](Editor& e) { e.program.lanes.resize(1000); }, "too many lanes"},
      {"firing_missing",
       [](Editor& e) {
         e.order().pop_back();
         for (Buffer& b : e.program.buffers) {
           b.last_use = std::min(b.last_use, static_cast<int32_t>(e.order().size()) - 1);
           b.first_use = std::min(b.first_use, b.last_use);
         }
       },
       "firings"},
      {"firing_twice", [](Editor& e) { e.order().back() = e.order()[0]; }, "fires twice"},
      {"firing_launch", [](Editor& e) { e.order().back().launch = 555; }, "no launch 555"},
      {"firing_micro_batch", [](Editor& e) { e.order().back().micro_batch = 1; },
       "of micro-batch 1"},
      {"wrong_lane",
       [](Editor& e) {
         e.program.lanes.push_back({LaneKind::kCopy, {}});
         e.program.lanes[1].order.push_back(e.order().back());
         e.order().pop_back();
         for (Buffer& b : e.program.buffers) {
           b.last_use = std::min(b.last_use, static_cast<int32_t>(e.order().size()) - 1);
           b.first_use = std::min(b.first_use, b.last_use);
         }
       },
       "fires on lane 1"},
      {"consumer_first", [](Editor& e) { std::swap(e.order()[0], e.order()[1]); }, "cannot go on"},
      {"reduce_before_last_micro_batch",
       [](Editor& e) {
         auto& order = e.order();
         const Firing reduce{find_launch(e.plan, "layer.0.reduce"), 0};
         order.erase(std::find(order.begin(), order.end(), reduce));
         order.insert(order.begin() + static_cast<std::ptrdiff_t>(order.size()) / 3, reduce);
       },
       "cannot go on"},
      {"update_before_reduce",
       [](Editor& e) {
         // The reduce of layer.1 has no successor among the updates of layer.0 but the norm, so the
         // order is caught by its edges.
         auto& order = e.order();
         std::rotate(order.end() - 4, order.end() - 1, order.end());
         std::swap(order[order.size() - 4], order[order.size() - 5]);
       },
       "lane 0"},
      {"micro_batches_reversed",
       [](Editor& e) {
         for (Firing& f : e.order()) {
           if (e.program.launches[static_cast<size_t>(f.launch)].phase <= Phase::kBackward) {
             f.micro_batch = 1 - f.micro_batch;
           }
         }
       },
       "cannot go on"},
  };
}

std::vector<Break> memory_breaks() {
  const auto first_in_workspace = [](Subgraph& s) -> ValuePlace& {
    for (ValuePlace& p : s.places) {
      if (p.space == ValuePlace::Space::kWorkspace) return p;
    }
    SGA_CHECK(false, "nothing in the workspace");
  };
  return {
      {"offsets_missing", [](Editor& e) { e.buffer("embed").offsets.clear(); }, "embed"},
      {"offset_negative", [](Editor& e) { e.buffer("embed").offsets[0] = -64; }, "embed"},
      {"offset_beyond", [](Editor& e) { e.buffer("embed").offsets[0] = e.program.arena_bytes; },
       "embed"},
      {"offset_overflows",
       [](Editor& e) {
         e.buffer("embed").offsets[0] = std::numeric_limits<int64_t>::max() / 64 * 64;
       },
       "embed"},
      {"offset_unaligned", [](Editor& e) { e.buffer("embed").offsets[0] += 4; }, "embed"},
      {"arena_too_small", [](Editor& e) { e.program.arena_bytes = 64; }, "no aligned place"},
      {"persistent_overlap", [](Editor& e) { e.buffer("w.0").offsets = e.buffer("w.1").offsets; },
       "share bytes"},
      {"activation_over_parameter",
       [](Editor& e) { e.buffer("layer.0.forward:0").offsets = e.buffer("w.1").offsets; },
       "share bytes"},
      {"batch_slots_overlap",
       [](Editor& e) { e.buffer("tokens").offsets[1] = e.buffer("tokens").offsets[0]; },
       "share bytes"},
      {"activations_overlap",
       [](Editor& e) {
         e.buffer("layer.0.forward:0").offsets = e.buffer("embed.forward:0").offsets;
       },
       "share bytes"},
      {"workspace_small", [](Editor& e) { e.buffer("layer.0.backward:workspace").bytes = 0; },
       "needs a workspace"},
      {"places_missing", [](Editor& e) { e.subgraph("head.forward").places.pop_back(); },
       "places for"},
      {"place_space",
       [](Editor& e) {
         e.subgraph("head.forward").places[0].space = static_cast<ValuePlace::Space>(3);
       },
       "no such place"},
      {"place_index", [](Editor& e) { e.subgraph("head.forward").places[0].index = 99; }, "place"},
      {"place_beyond",
       [=](Editor& e) { first_in_workspace(e.subgraph("layer.0.backward")).offset = 1 << 20; },
       "outside its place"},
      {"place_unaligned",
       [=](Editor& e) { first_in_workspace(e.subgraph("layer.0.backward")).offset += 4; },
       "outside its place"},
      {"input_elsewhere",
       [](Editor& e) {
         Subgraph& s = e.subgraph("layer.0.update");
         s.places[s.body.inputs()[0].value].index = 1;
       },
       ""},
      {"output_elsewhere",
       [](Editor& e) {
         Subgraph& s = e.subgraph("layer.0.forward");
         s.workspace_bytes = 1 << 20;
         s.places[s.body.outputs().back().value] = {ValuePlace::Space::kWorkspace, 0, 1 << 16};
       },
       "output"},
      {"value_overwritten",
       [](Editor& e) {
         // All workspace values at one place: something needed is written over.
         for (ValuePlace& p : e.subgraph("layer.0.backward").places) {
           if (p.space == ValuePlace::Space::kWorkspace) p.offset = 0;
         }
       },
       "needed"},
      {"input_overwritten",
       [](Editor& e) {
         // A result in the place of an input that is not updated.
         Subgraph& s = e.subgraph("layer.0.forward");
         for (const Op& op : s.body.ops()) {
           if (op.kind == OpKind::kMatmul) {
             s.places[op.results[0]] = s.places[op.operands[0]];
             return;
           }
         }
       },
       ""},
  };
}

class BreakTest : public testing::TestWithParam<Break> {};

TEST_P(BreakTest, IsRefused) {
  Plan plan = sample_plan();
  ASSERT_TRUE(verify_plan(plan).ok()) << verify_plan(plan).to_string();
  Editor editor(plan);
  GetParam().edit(editor);
  const Status s = verify_plan(plan);
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.code(), Code::kInvalidPlan);
  EXPECT_NE(s.message().find(GetParam().message), std::string::npos) << s.to_string();
}

std::string break_name(const testing::TestParamInfo<Break>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Subgraph, BreakTest, testing::ValuesIn(mesh_and_subgraph_breaks()),
                         break_name);
INSTANTIATE_TEST_SUITE_P(Buffer, BreakTest, testing::ValuesIn(buffer_breaks()), break_name);
INSTANTIATE_TEST_SUITE_P(Launch, BreakTest, testing::ValuesIn(launch_breaks()), break_name);
INSTANTIATE_TEST_SUITE_P(Edge, BreakTest, testing::ValuesIn(edge_breaks()), break_name);
INSTANTIATE_TEST_SUITE_P(Order, BreakTest, testing::ValuesIn(order_breaks()), break_name);
INSTANTIATE_TEST_SUITE_P(Memory, BreakTest, testing::ValuesIn(memory_breaks()), break_name);

TEST(VerifyMemoryTest, ChecksLaterMicroBatchesToo) {
  // The first micro-batch alone would allow it: the second starts before the first has ended.
  Plan plan = sample_plan();
  Editor e(plan);
  auto& order = e.order();
  // Interleave: the second forward of "embed" before the last backward of micro-batch 0. Its output
  // has one slot, which layer.0's backward of micro-batch 0 still reads.
  const Firing second{find_launch(plan, "embed.forward"), 1};
  const Firing reader{find_launch(plan, "layer.0.backward"), 0};
  order.erase(std::find(order.begin(), order.end(), second));
  order.insert(std::find(order.begin(), order.end(), reader), second);
  EXPECT_TRUE(verify_structure(plan).ok()) << verify_structure(plan).to_string();
  const Status s = verify_memory(plan);
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.message().find("share bytes"), std::string::npos) << s.to_string();
}

}  // namespace
}  // namespace sgactor::graph
