#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::supervision {

/// What is known of a logical rank's memory.
enum class Holder : uint8_t {
  kGone = 0,  ///< its worker is lost, or has not begun
  kDoubtful,  ///< something of its worker has failed
  kWhole,     ///< it holds the state of the step committed last, or will without others
};

/// Why lost ranks cannot get their state from data-parallel replicas in runs of this plan; empty:
/// they can. Each rank must hold all of its stage's (and tensor-parallel rank's) state, and bring
/// itself to the step committed last without those that are lost.
std::string no_replicas(const graph::Plan& plan);

/// For each (stage, tensor-parallel rank), in this order, the logical rank that writes the state of
/// both to be read by others: the lowest data-parallel one that is whole, else the lowest doubtful
/// one. `holders` by logical rank. Pure. Errors: kDisconnected, scope kJob, naming the ranks of
/// those parts that nobody holds.
Result<std::vector<int32_t>> choose_replicas(const graph::Plan& plan,
                                             const std::vector<Holder>& holders);

}  // namespace sgactor::supervision
