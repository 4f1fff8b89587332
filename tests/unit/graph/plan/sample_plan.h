#pragma once
#include "graph/plan/plan.h"

#include <string_view>

namespace sgactor::graph {

/// A verified plan of two small layers with two micro-batches: every kind of buffer, edge and
/// phase.
Plan sample_plan();

LaunchId find_launch(const Plan& plan, std::string_view name);
BufferId find_buffer(const Plan& plan, std::string_view name);

}  // namespace sgactor::graph
