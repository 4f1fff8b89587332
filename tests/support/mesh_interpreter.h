#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::testing {

/// An axis of a mesh; its name is the name of the group that collectives along it run over.
struct InterpreterAxis {
  std::string name;  ///< "dp", "tp"
  int32_t size = 1;
};

/// Ranks are numbered row-major over the axes: the last axis varies fastest.
int32_t num_mesh_ranks(const std::vector<InterpreterAxis>& axes);
/// Coordinate of a rank along axis `axis`.
int32_t mesh_coordinate(const std::vector<InterpreterAxis>& axes, int32_t rank, size_t axis);

/// Numbers of one rank: one vector an input or output, in order.
using RankNumbers = std::vector<std::vector<double>>;

/// Runs one graph on every rank of a mesh in lock step, op by op, in float64 on the reference
/// kernels; collectives add (or compare) members in order of their coordinate, directly.
/// `inputs[rank][i]` are the numbers of input i on that rank; the result is [rank][output]. An
/// input is filled with the rank's coordinate along "x" where it is kScalar "x_index" and its
/// vector is empty. Errors: kInvalidPlan from the verifier; kInvalidArgument: numbers that do not
/// fit, a group or a member count that the mesh does not have, an id outside its table (naming the
/// rank).
Result<std::vector<RankNumbers>> run_mesh(const graph::Graph& graph,
                                          const std::vector<InterpreterAxis>& axes,
                                          const std::vector<RankNumbers>& inputs);

}  // namespace sgactor::testing
