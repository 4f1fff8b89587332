#pragma once
#include "graph/base/status.h"
#include "supervision/membership/world.h"

#include <cstdint>
#include <vector>

namespace sgactor::supervision {

struct PlacementOptions {
  int32_t max_ranks_per_worker = 4;  ///< arenas are planned for so many
  bool allow_inexact = false;        ///< a rank may move to a worker of another fingerprint
};

/// The first world: generation 1, rank r on the r-th worker while there are enough (the rest are
/// spares), else contiguous blocks. `nodes` and `workers` ascending. Errors: kOverloaded.
Result<World> initial_world(int32_t num_ranks, std::vector<NodeId> nodes,
                            std::vector<Member> workers, const PlacementOptions& options);

/// `before` with other members, generation + 1. Ranks of workers that are gone get incarnation + 1
/// and go to the nearest spare (same node first, then the lowest id); without one, to the worker
/// with the fewest ranks (shrink). Ranks of workers that stay do not move. A mirror that is gone,
/// or that shares its rank's node although another node is alive, is chosen anew (fewest ranks
/// first); `source` keeps naming a node that holds the committed state, as long as one does.
/// Errors: kOverloaded if the workers left cannot hold all ranks.
Result<World> replace_members(const World& before, std::vector<NodeId> nodes,
                              std::vector<Member> workers, const PlacementOptions& options);

/// Grow: moves ranks from workers with the most to workers with two fewer, one by one, until no
/// such pair is left; generation + 1 and incarnation + 1 for those that move. Equal to `before` if
/// nothing moves. Only ranks whose committed state lies at a live source move: nobody gives up the
/// only copy. For step boundaries: the work of an open step would be done again.
World rebalance(const World& before, const PlacementOptions& options);

}  // namespace sgactor::supervision
