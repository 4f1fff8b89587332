#pragma once
#include "graph/ir/graph.h"

#include <string>
#include <string_view>

namespace sgactor::graph {

/// The readable form (`.sgir`); parse_graph(print_graph(g)) == g up to value numbering, which
/// printing makes dense.
///
///   graph @llama {
///     input %0 : f32[256, 192] parameter "model.embed_tokens.weight"
///     input %1 : i32[4, 128] tokens "tokens"
///     %2 = gather(%0, %1) : f32[4, 128, 192] @forward embed
///     %3, %4 = rms_norm(%2, %w) {eps = 1e-05} : f32[4, 128, 192], f32[4, 128] @forward "layer.0"
///     output %3 activation "h"
///   }
///
/// '#' starts a comment. An op without '@' is of phase forward; segments may be left out, then on
/// all ops. A line `segments embed, "layer.0"` is printed only where the ops do not bring the
/// segments up in their order. Inputs may stand between ops; values are defined before they are
/// used. Value names in the text may be any %identifier. Floats print with 17 digits where needed,
/// so that they round-trip.
std::string print_graph(const Graph& graph);
/// Errors: kInvalidArgument "line 3, column 9: …"; never crashes on hostile text (fuzzed). The
/// result is verified.
Result<Graph> parse_graph(std::string_view text);

}  // namespace sgactor::graph
