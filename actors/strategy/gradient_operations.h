#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::actors {

/// One gradient that a launch reduces.
struct GradientPair {
  std::string parameter;
  TensorType input, output;
};

/// A launch that reduces gradients over dp.
struct GradientOperation {
  graph::LaunchId launch = graph::kNoLaunch;
  int32_t key = -1;  ///< as the launch's communication has it
  bool scatters = false;
  std::string name;
  std::vector<GradientPair> pairs;  ///< in order of the launch's inputs and outputs
};

/// The reductions of gradients in lane `lane` of `program`: all-reduces and reduce-scatters over
/// all of dp of which every input comes from accumulators "grad/<parameter>" or every output is
/// one. Other operations are left out. Pure. Errors: kUnsupported naming the launch: a gradient
/// that is not f32.
Result<std::vector<GradientOperation>> find_gradient_operations(const graph::Plan& plan,
                                                                const graph::RankProgram& program,
                                                                int32_t lane);

}  // namespace sgactor::actors
