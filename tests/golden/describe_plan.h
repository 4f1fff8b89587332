#pragma once
#include "graph/plan/plan.h"

#include <string>

namespace sgactor::graph {

/// All of a plan that a golden test should see: bodies with places, launches with what they are
/// bound to, the lane's order, and buffers with live ranges and, once planned, offsets.
std::string describe_plan(const Plan& plan);
/// What every program does, of all lanes, without bodies and places: before plan_memory.
std::string describe_programs(const Plan& plan);

}  // namespace sgactor::graph
