#pragma once
#include <cstdint>
#include <string>

namespace sgactor::graph {

/// How parameters are cut along the axis, by name. The first rule that matches decides; a parameter
/// that none matches is replicated.
struct ParameterRule {
  std::string pattern;    ///< the whole name; '*' stands for any characters, also none
  int32_t dim = -1;       ///< -1: replicated
  int64_t num_units = 0;  ///< > 0: `dim` holds that many units (heads), which are never cut
  std::string unit;       ///< what a unit is called in errors: "key/value heads"
};

}  // namespace sgactor::graph
