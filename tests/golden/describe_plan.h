#pragma once
#include "graph/plan/plan.h"

#include <string>

namespace sgactor::graph {

/// All of a plan that a golden test should see: bodies with places, launches with what they are
/// bound to, the lane's order, and buffers with live ranges and, once planned, offsets.
std::string describe_plan(const Plan& plan);

}  // namespace sgactor::graph
