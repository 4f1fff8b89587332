#include "tests/golden/describe_plan.h"

#include "graph/ir/text.h"

#include <fmt/format.h>

namespace sgactor::graph {
namespace {

std::string place_text(const ValuePlace& p) {
  switch (p.space) {
    case ValuePlace::Space::kInput:
      return fmt::format("input {}", p.index);
    case ValuePlace::Space::kOutput:
      return fmt::format("output {}", p.index);
    case ValuePlace::Space::kWorkspace:
      break;
  }
  return fmt::format("workspace + {}", p.offset);
}

std::string edge_text(const RankProgram& program, const LaunchInput& input) {
  const std::string producer =
      input.producer == kNoLaunch ? "" : program.launches[static_cast<size_t>(input.producer)].name;
  switch (input.edge) {
    case EdgeKind::kSameMicroBatch:
      return "from " + producer;
    case EdgeKind::kLastMicroBatch:
      return "after the last micro-batch, from " + producer;
    case EdgeKind::kState:
      return "state";
    case EdgeKind::kPrepared:
      return "prepared by " + producer;
    case EdgeKind::kBatch:
      break;
  }
  return "batch";
}

std::string describe_subgraph(const Subgraph& s) {
  std::string text = fmt::format("subgraph {}: workspace {} bytes\n{}", s.name, s.workspace_bytes,
                                 print_graph(s.body));
  for (size_t j = 0; j < s.alias_input.size(); ++j) {
    if (s.alias_input[j] >= 0) {
      text += fmt::format("  output {} updates input {}\n", j, s.alias_input[j]);
    }
  }
  for (ValueId v = 0; v < s.places.size(); ++v) {
    text += fmt::format("  %{} in {}\n", v, place_text(s.places[v]));
  }
  return text;
}

std::string_view kind_text(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kSubgraph:
      return "subgraph";
    case LaunchKind::kAllReduce:
      return "all_reduce";
    case LaunchKind::kReduceScatter:
      return "reduce_scatter";
    case LaunchKind::kAllGather:
      return "all_gather";
    case LaunchKind::kBroadcast:
      return "broadcast";
    case LaunchKind::kAllToAll:
      return "all_to_all";
    case LaunchKind::kSend:
      return "send";
    case LaunchKind::kRecv:
      break;
  }
  return "recv";
}

std::string work_text(const Plan& plan, const Launch& l) {
  if (l.kind == LaunchKind::kSubgraph) return plan.subgraphs[static_cast<size_t>(l.subgraph)].name;
  const Communication& c = l.communication;
  std::string text =
      fmt::format("{} over {}", kind_text(l.kind), plan.groups[static_cast<size_t>(c.group)].name);
  if (c.peer >= 0) text += fmt::format(" with {}, key {}", c.peer, c.key);
  return text;
}

std::string describe_launch(const Plan& plan, const RankProgram& program, const Launch& l) {
  const auto name = [&](BufferId id) { return program.buffers[static_cast<size_t>(id)].name; };
  std::string text = fmt::format("launch {} = {} in segment {}\n", l.name, work_text(plan, l),
                                 plan.segments[static_cast<size_t>(l.segment)]);
  for (const LaunchInput& input : l.inputs) {
    text += fmt::format("  reads {} ({})\n", name(input.buffer), edge_text(program, input));
  }
  for (BufferId output : l.outputs) text += fmt::format("  writes {}\n", name(output));
  return text;
}

std::string describe_lane(const RankProgram& program, const Lane& lane) {
  std::string text = "lane " + lane.name + ":";
  for (const Firing& f : lane.order) {
    text +=
        fmt::format(" {}@{}", program.launches[static_cast<size_t>(f.launch)].name, f.micro_batch);
    if (lane.kind != LaneKind::kCompute) text += fmt::format(" after {}", f.start);
    text += &f == &lane.order.back() ? "" : ",";
  }
  return text + "\n";
}

}  // namespace

std::string describe_programs(const Plan& plan) {
  std::string text;
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    const RankProgram& program = plan.programs[p];
    text += fmt::format("program {}\n", p);
    for (const Launch& l : program.launches) text += describe_launch(plan, program, l);
    for (const Lane& lane : program.lanes) text += describe_lane(program, lane);
    for (const Buffer& b : program.buffers) {
      if (b.kind == BufferKind::kWorkspace) continue;  // no bytes before plan_memory
      text += fmt::format("buffer {} {} {}, {} slots, live [{}, {}]\n", to_string(b.kind), b.name,
                          b.type.to_string(), b.num_slots, b.first_use, b.last_use);
    }
  }
  for (const RankPlacement& r : plan.ranks) {
    text += fmt::format("rank pp {} dp {} tp {}: program {}\n", r.pp, r.dp, r.tp, r.program);
  }
  return text;
}

std::string describe_plan(const Plan& plan) {
  std::string text;
  for (const Subgraph& s : plan.subgraphs) text += describe_subgraph(s);
  const RankProgram& program = plan.programs[0];
  for (const Launch& l : program.launches) text += describe_launch(plan, program, l);
  text += "order";
  for (const Firing& f : program.lanes[0].order) {
    text +=
        fmt::format(" {}@{}", program.launches[static_cast<size_t>(f.launch)].name, f.micro_batch);
  }
  text += "\n";
  for (const Buffer& b : program.buffers) {
    text += fmt::format("buffer {} {} {}, {} bytes x {}, live [{}, {}]", to_string(b.kind), b.name,
                        b.type.to_string(), b.bytes, b.num_slots, b.first_use, b.last_use);
    for (int64_t offset : b.offsets) text += fmt::format(" @{}", offset);
    text += "\n";
  }
  if (program.arena_bytes > 0) {
    const MemoryStats& m = plan.memory;
    text += fmt::format("arena {} bytes: naive {}, lower bound {}, transient {}\n", m.planned_bytes,
                        m.naive_bytes, m.lower_bound_bytes, m.activation_peak_bytes);
  }
  return text;
}

}  // namespace sgactor::graph
