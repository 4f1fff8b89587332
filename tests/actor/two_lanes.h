#pragma once
#include "graph/plan/plan.h"

namespace sgactor::testing_support {

/// The same program on two lanes: the forward and backward of odd segments, and updates of odd
/// segments, go to lane 1. Every buffer slot gets bytes of its own, since live ranges across lanes
/// are not planned here.
graph::Plan on_two_lanes(const graph::Plan& plan);

}  // namespace sgactor::testing_support
