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

std::string describe_launch(const Plan& plan, const RankProgram& program, const Launch& l) {
  const auto name = [&](BufferId id) { return program.buffers[static_cast<size_t>(id)].name; };
  std::string text = fmt::format("launch {} = {} in segment {}\n", l.name,
                                 plan.subgraphs[static_cast<size_t>(l.subgraph)].name,
                                 plan.segments[static_cast<size_t>(l.segment)]);
  for (const LaunchInput& input : l.inputs) {
    text += fmt::format("  reads {} ({})\n", name(input.buffer), edge_text(program, input));
  }
  for (BufferId output : l.outputs) text += fmt::format("  writes {}\n", name(output));
  return text;
}

}  // namespace

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
