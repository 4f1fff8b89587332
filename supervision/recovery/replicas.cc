#include "supervision/recovery/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sgactor::supervision {

std::string no_replicas(const graph::Plan& plan) {
  if (plan.mesh.dp < 2) return "parallelism.data_parallel_degree is 1";
  if (plan.zero_stage != 0) return "parallelism.zero_stage shards the state";
  for (const graph::RankProgram& program : plan.programs) {
    for (const graph::Launch& launch : program.launches) {
      if (launch.phase != graph::Phase::kUpdate) continue;
      if (launch.kind != graph::LaunchKind::kSubgraph) return "the update communicates";
    }
  }
  return {};
}

Result<std::vector<int32_t>> choose_replicas(const graph::Plan& plan,
                                             const std::vector<Holder>& holders) {
  std::vector<int32_t> chosen;
  std::vector<std::string> lost;
  for (int32_t pp = 0; pp < plan.mesh.pp; ++pp) {
    for (int32_t tp = 0; tp < plan.mesh.tp; ++tp) {
      int32_t best = -1;
      std::vector<int32_t> ranks;
      for (int32_t dp = 0; dp < plan.mesh.dp; ++dp) {
        const int32_t rank = graph::rank_at(plan, pp, dp, tp);
        if (rank < 0 || static_cast<size_t>(rank) >= holders.size()) continue;
        ranks.push_back(rank);
        const auto better = [&](int32_t other) {
          return holders[static_cast<size_t>(rank)] > holders[static_cast<size_t>(other)];
        };
        if (holders[static_cast<size_t>(rank)] == Holder::kGone) continue;
        if (best < 0 || better(best)) best = rank;
      }
      if (best >= 0) {
        chosen.push_back(best);
      } else {
        lost.push_back(fmt::format("ranks {} (stage {}, tensor-parallel rank {})",
                                   fmt::join(ranks, ", "), pp, tp));
      }
    }
  }
  if (lost.empty()) return chosen;
  return make_status(Code::kDisconnected,
                     fmt::format("no data-parallel replica is left of {}", fmt::join(lost, "; ")),
                     Scope::kJob);
}

}  // namespace sgactor::supervision
