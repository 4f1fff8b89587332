#pragma once
#include "graph/plan/plan.h"

#include <string>

namespace sgactor::graph {

/// Cap'n Proto form of a plan (plan.capnp): what workers load and the compile cache stores. Equal
/// plans give equal bytes; compile_ms, which differs from run to run, is left out.
std::string serialize_plan(const Plan& plan);
/// Errors: kCorruption, kInvalidPlan. Safe on hostile bytes; the result is verified.
Result<Plan> deserialize_plan(std::string_view bytes);
/// Summary for people: subgraphs with launches, FLOPs and bytes; memory by kind; lane orders
/// abridged.
std::string print_plan(const Plan& plan);

}  // namespace sgactor::graph
