#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sgactor::graph {

/// Cap'n Proto form (graph.capnp), used on the wire, in plans and checkpoints. Bytes travel as
/// std::string.
std::string serialize_graph(const Graph& graph);
/// Errors: kCorruption. Safe on hostile bytes (fuzzed); the result is verified.
Result<Graph> deserialize_graph(std::string_view bytes);

/// Hash of the canonical form: topology of ops, kinds, attributes, shapes, dtypes, input and output
/// roles and names. Independent of value numbering, op order among independent ops, segment tags,
/// mesh and device.
uint64_t schema_hash(const Graph& graph);
/// Same, but without the names of inputs and outputs: equal for identical layers, so that they are
/// compiled once.
uint64_t structure_hash(const Graph& graph);

}  // namespace sgactor::graph
