#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace sgactor::graph {

/// A piece-to-be of one phase and segment: what lies between its operations that communicate, or
/// one of those.
struct CutSegment {
  int32_t segment = 0;  ///< of the graph that was cut
  std::string suffix;   ///< of the launch's name: "", ".1", ".all_gather"
};

/// Copy of `source` whose segments are finer: an op that communicates has a segment of its own,
/// what depends on it stands in a later one, and what it depends on in an earlier one, in the order
/// in which partition_subgraphs runs pieces. Gathers that wait for nothing in their phase and
/// segment stand first.
struct CutGraph {
  Graph graph;
  std::map<std::pair<Phase, int32_t>, CutSegment> pieces;  ///< by phase and segment of `graph`
};
CutGraph cut_communication(const Graph& source);

}  // namespace sgactor::graph
