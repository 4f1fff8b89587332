#include "graph/ir/verify.h"
#include "graph/plan/plan.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <set>

namespace sgactor::graph {
namespace {

/// Degrees and counts above this are refused before anything is allocated for them.
constexpr int64_t kMaxRanks = 1 << 24;

Status check_aliases(const Subgraph& subgraph) {
  const Graph& body = subgraph.body;
  if (subgraph.alias_input.size() != body.outputs().size()) {
    return invalid_plan(fmt::format("{} alias entries for {} outputs", subgraph.alias_input.size(),
                                    body.outputs().size()));
  }
  std::vector<bool> taken(body.inputs().size(), false);
  for (size_t j = 0; j < subgraph.alias_input.size(); ++j) {
    const int32_t i = subgraph.alias_input[j];
    if (i == -1) continue;
    if (i < 0 || static_cast<size_t>(i) >= body.inputs().size()) {
      return invalid_plan(fmt::format("output {} updates input {}, which does not exist", j, i));
    }
    const auto input = static_cast<size_t>(i);
    if (taken[input]) return invalid_plan(fmt::format("two outputs update input {}", i));
    taken[input] = true;
    const TensorType& from = body.type(body.inputs()[input].value);
    const TensorType& to = body.type(body.outputs()[j].value);
    if (from != to) {
      return invalid_plan(fmt::format("output {} is {} and updates input {}, which is {}", j,
                                      to.to_string(), i, from.to_string()));
    }
  }
  return {};
}

Status check_subgraph(const Subgraph& subgraph) {
  SGA_TRY(verify(subgraph.body));
  SGA_TRY(check_aliases(subgraph));
  if (subgraph.workspace_bytes < 0 || subgraph.bytes_moved < 0) {
    return invalid_plan("negative bytes");
  }
  return {};
}

Status check_mesh(const Plan& plan) {
  const MeshShape& m = plan.mesh;
  if (m.pp < 1 || m.dp < 1 || m.tp < 1 || static_cast<int64_t>(m.pp) * m.dp > kMaxRanks ||
      static_cast<int64_t>(m.pp) * m.dp * m.tp > kMaxRanks) {
    return invalid_plan(fmt::format("mesh {} x {} x {}: expected degrees >= 1, at most {} ranks",
                                    m.pp, m.dp, m.tp, kMaxRanks));
  }
  if (plan.ranks.size() != static_cast<size_t>(m.num_ranks())) {
    return invalid_plan(
        fmt::format("{} ranks placed, the mesh has {}", plan.ranks.size(), m.num_ranks()));
  }
  std::set<std::tuple<int32_t, int32_t, int32_t>> places;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlacement& p = plan.ranks[r];
    if (p.pp < 0 || p.pp >= m.pp || p.dp < 0 || p.dp >= m.dp || p.tp < 0 || p.tp >= m.tp ||
        !places.emplace(p.pp, p.dp, p.tp).second) {
      return invalid_plan(fmt::format("rank {}: coordinates outside the mesh or taken", r));
    }
    if (p.program < 0 || static_cast<size_t>(p.program) >= plan.programs.size()) {
      return invalid_plan(fmt::format("rank {}: program {} does not exist", r, p.program));
    }
  }
  return {};
}

Status check_groups(const Plan& plan) {
  for (const RankGroup& g : plan.groups) {
    if (g.axis > MeshAxis::kTp) return invalid_plan("group \"" + g.name + "\": unknown axis");
    const int32_t degree = g.axis == MeshAxis::kPp   ? plan.mesh.pp
                           : g.axis == MeshAxis::kDp ? plan.mesh.dp
                                                     : plan.mesh.tp;
    int32_t last = -1;
    for (int32_t at : g.coordinates) {
      if (at <= last || at >= degree) {
        return invalid_plan(fmt::format("group \"{}\": coordinate {} of {}", g.name, at, degree));
      }
      last = at;
    }
  }
  return {};
}

}  // namespace

Status verify_structure(const Plan& plan) {
  if (plan.storage > StorageModel::kHash) return invalid_plan("unknown storage model");
  SGA_TRY(check_mesh(plan));
  SGA_TRY(check_groups(plan));
  for (size_t i = 0; i < plan.subgraphs.size(); ++i) {
    SGA_TRY(check_subgraph(plan.subgraphs[i])
                .with_context(fmt::format("subgraph {} \"{}\"", i, plan.subgraphs[i].name)));
  }
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    SGA_TRY(verify_program(plan, plan.programs[i]).with_context(fmt::format("program {}", i)));
  }
  return plan.groups.empty() ? Status() : verify_mesh(plan);
}

Status verify_plan(const Plan& plan) {
  SGA_TRY(verify_structure(plan));
  return verify_memory(plan);
}

}  // namespace sgactor::graph
