#pragma once
#include "graph/ir/graph.h"
#include "graph/passes/pattern_rewriter.h"

#include <compare>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::graph {

/// First half of partition_subgraphs: rewrites a graph so that it can be cut.

/// A piece: the ops of one phase and segment, in the step's order. Backward pieces run from the
/// last segment to the first.
struct PieceKey {
  Phase phase = Phase::kForward;
  int32_t order = 0;  ///< place among the pieces of the phase
  friend auto operator<=>(const PieceKey&, const PieceKey&) = default;
};
PieceKey piece_of(const Op& op);

/// Copy in which
/// - a view, or an op without operands (constants, tables), stands in each piece that reads it, so
///   that views never cross from piece to piece and constants need no buffer;
/// - every graph output owns its bytes: an output that would share them with an input of another
///   name, another output or a value that crosses, or that cannot take the bytes of the input it
///   replaces (same role and name), becomes a copy (times one, or a cast to its own dtype);
/// - an in-place update of what another piece made updates a copy of it, but for what is handed
///   over (below);
/// - an output that is the input of the same role and name unchanged is gone.
/// Errors: kInvalidPlan: a value read by an earlier piece than the one that makes it; an in-place
/// update of an input that a later piece reads; an output that would
/// overwrite one input by another.
Result<Graph> prepare_pieces(const Graph& graph);

/// Accumulators that one piece makes and a later one adds to, with nothing of them coming into the
/// step: the value that the first leaves, by the output that the second makes of it. It is read by
/// that in-place update alone, so both may have one buffer. (So the gradients of a tied embedding.)
std::map<ValueId, const GraphOutput*> find_handed_over(const Graph& graph);

/// Inputs by role and name: Graph::find_input is a linear search.
class InputIndex {
 public:
  explicit InputIndex(const Graph& graph);
  /// kNoValue if there is none.
  [[nodiscard]] ValueId find(Role role, const std::string& name) const;

 private:
  std::map<std::pair<Role, std::string>, ValueId> values_;
};

/// For an output of a prepared graph: the input whose bytes it takes, or -1.
int32_t updated_input(const Graph& graph, const InputIndex& inputs, const GraphOutput& output);

}  // namespace sgactor::graph
