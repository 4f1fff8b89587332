#pragma once
#include "graph/ir/placement.h"
#include "graph/passes/insert_collectives.h"
#include "tests/support/mesh_interpreter.h"

#include <cstdint>
#include <vector>

namespace sgactor::testing {

/// What rank `rank` of `members` holds of a whole tensor placed so. Parts of a partial sum are
/// random numbers that add up to it.
std::vector<double> split(const std::vector<double>& whole, const TensorType& type,
                          graph::Placement placement, int32_t rank, int32_t members);

/// The whole tensor from what the ranks hold. Fails the test where replicas differ or padding is
/// not zero.
std::vector<double> join(const std::vector<std::vector<double>>& parts, const TensorType& type,
                         graph::Placement placement);

/// Inputs of every rank for a sharded graph, from those of the whole one; the rank's index is left
/// to the interpreter.
std::vector<RankNumbers> split_inputs(const graph::Graph& whole, const graph::Graph& sharded,
                                      const std::vector<graph::Placement>& placements,
                                      const RankNumbers& numbers, int32_t members);

/// Output `i` of every rank.
std::vector<std::vector<double>> output_of(const std::vector<RankNumbers>& ranks, size_t i);

/// Expects |a - b| <= tolerance * max(1, |b|), and infinities alike.
void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance);

}  // namespace sgactor::testing
