#include "graph/base/hash.h"
#include "graph/base/units.h"
#include "graph/plan/serial.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace sgactor::graph {
namespace {

using Out = std::back_insert_iterator<std::string>;

void print_subgraphs(const Plan& plan, const RankProgram& program, Out out) {
  std::vector<int64_t> launches(plan.subgraphs.size(), 0);
  for (const Launch& l : program.launches) {
    const auto subgraph = static_cast<size_t>(l.subgraph);
    if (l.subgraph >= 0 && subgraph < launches.size()) ++launches[subgraph];
  }
  fmt::format_to(out, "subgraphs: {}, compiled once each, {} launches\n", plan.subgraphs.size(),
                 program.launches.size());
  fmt::format_to(out, "  {:<24} {:>8} {:>6} {:>10} {:>12} {:>12}\n", "name", "launches", "ops",
                 "FLOPs", "moved", "workspace");
  for (size_t i = 0; i < plan.subgraphs.size(); ++i) {
    const Subgraph& s = plan.subgraphs[i];
    if (launches[i] == 0) continue;
    fmt::format_to(out, "  {:<24} {:>8} {:>6} {:>10} {:>12} {:>12}\n", s.name, launches[i],
                   s.body.ops().size(), format_count(s.flops), format_bytes(s.bytes_moved),
                   format_bytes(s.workspace_bytes));
  }
}

void print_memory(const Plan& plan, const RankProgram& program, Out out) {
  std::array<int64_t, 8> bytes{};
  std::array<int64_t, 8> count{};
  for (const Buffer& b : program.buffers) {
    const auto kind = static_cast<size_t>(b.kind);
    if (kind >= bytes.size()) continue;
    bytes[kind] += b.bytes * b.num_slots;
    ++count[kind];
  }
  const MemoryStats& m = plan.memory;
  fmt::format_to(out, "memory: arena {}, storage {}\n", format_bytes(program.arena_bytes),
                 to_string(plan.storage));
  for (size_t kind = 0; kind < bytes.size(); ++kind) {
    if (count[kind] == 0) continue;
    const bool shared = static_cast<BufferKind>(kind) >= BufferKind::kActivation;
    fmt::format_to(out, "  {:<12} {:>6} buffers {:>12}{}\n",
                   to_string(static_cast<BufferKind>(kind)), count[kind], format_bytes(bytes[kind]),
                   shared ? "  before sharing" : "");
  }
  const double naive = static_cast<double>(std::max<int64_t>(m.naive_bytes, 1));
  fmt::format_to(out,
                 "  every tensor at its own address {}, planned {} ({:.1f} %), lower bound {}, "
                 "transient part {}\n",
                 format_bytes(m.naive_bytes), format_bytes(m.planned_bytes),
                 100 * static_cast<double>(m.planned_bytes) / naive,
                 format_bytes(m.lower_bound_bytes), format_bytes(m.activation_peak_bytes));
}

void print_firing(const RankProgram& program, const Firing& firing, Out out) {
  const auto id = static_cast<size_t>(firing.launch);
  if (firing.launch < 0 || id >= program.launches.size()) return;
  fmt::format_to(out, "  {}@{}", program.launches[id].name, firing.micro_batch);
}

void print_lanes(const RankProgram& program, Out out) {
  constexpr size_t kShown = 4;
  static constexpr std::array<std::string_view, 3> kLaneNames = {"compute", "copy",
                                                                 "communication"};
  for (size_t i = 0; i < program.lanes.size(); ++i) {
    const Lane& lane = program.lanes[i];
    const auto kind = static_cast<size_t>(lane.kind);
    fmt::format_to(out, "lane {} ({}), {} firings:", i,
                   kind < kLaneNames.size() ? kLaneNames[kind] : "?", lane.order.size());
    for (size_t k = 0; k < lane.order.size(); ++k) {
      if (k == kShown && lane.order.size() > 2 * kShown) {
        fmt::format_to(out, "  ...");
        k = lane.order.size() - kShown;
      }
      print_firing(program, lane.order[k], out);
    }
    fmt::format_to(out, "\n");
  }
}

}  // namespace

std::string print_plan(const Plan& plan) {
  std::string text;
  Out out = std::back_inserter(text);
  fmt::format_to(out, "plan \"{}\", schema {}\n", plan.name, hex64(plan.schema_hash));
  fmt::format_to(out, "parameters {}, model FLOPs a token {}, ops {} before fusing, {} after\n",
                 format_count(static_cast<double>(plan.num_parameters)),
                 format_count(plan.flops_per_token), plan.ops_before, plan.ops_after);
  fmt::format_to(out, "mesh pp {} x dp {} x tp {}, {} programs, segments {}\n", plan.mesh.pp,
                 plan.mesh.dp, plan.mesh.tp, plan.programs.size(), plan.segments.size());
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const RankProgram& program = plan.programs[i];
    fmt::format_to(out, "program {}: {} micro-batches a step\n", i, program.num_micro_batches);
    print_subgraphs(plan, program, out);
    print_memory(plan, program, out);
    print_lanes(program, out);
  }
  return text;
}

}  // namespace sgactor::graph
