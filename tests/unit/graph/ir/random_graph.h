#pragma once
#include "graph/ir/graph.h"

#include <cstdint>

namespace sgactor::graph {

/// A valid graph of about `num_ops` random ops of most unfused kinds, with inputs of all kinds and
/// its last values as outputs. A pure function of the arguments. Inputs come first in the
/// numbering.
Graph random_graph(uint64_t seed, int num_ops);

/// The same graph with its values numbered anew and its ops in another topological order. Inputs
/// and outputs keep their order, but inputs may stand behind ops. Ignores in-place updates, so the
/// result need not pass verify().
Graph shuffle_graph(const Graph& graph, uint64_t seed);

}  // namespace sgactor::graph
