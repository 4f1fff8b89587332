#pragma once
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::apps {

/// What one `resilience.mode` costs a run of a plan, and what it is good for.
struct ModePrice {
  std::string mode;
  bool possible = true;
  std::string why_not;        ///< where it is not possible
  int64_t memory_bytes = 0;   ///< of a node that hosts all ranks, beside the plan's: at most
  int64_t traffic_bytes = 0;  ///< copied a step by all ranks together, on average
  std::string survives;
};
/// Of "off", "replicas" and "mirror", in this order, for copies each `mirror_interval` steps. Pure.
std::vector<ModePrice> price_modes(const graph::Plan& plan, int64_t mirror_interval);

/// What a logical rank holds: parameters and moments, and what the update of one step reads beside
/// them.
struct RankBytes {
  int64_t state = 0;
  int64_t inputs = 0;
};
/// By logical rank. Pure.
std::vector<RankBytes> bytes_of_ranks(const graph::Plan& plan);

}  // namespace sgactor::apps
