#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <vector>

namespace sgactor::graph {

/// The part of plan_memory inside one subgraph.

/// Values of a body that share bytes: views, in-place results, results that take a dead operand's
/// place.
struct StorageClass {
  int64_t bytes = 0;    ///< rounded up
  int32_t first = -1;   ///< op that makes it; -1: an input
  int32_t last = -1;    ///< last op that needs it; the number of ops for an output
  int32_t input = -1;   ///< which body input it is
  int32_t output = -1;  ///< which body output it is
};

struct BodyMemory {
  std::vector<ValuePlace> places;  ///< one a value
  int64_t workspace_bytes = 0;
  int64_t naive_bytes = 0;  ///< inner values but views and in-place results, each rounded up
  std::vector<StorageClass> classes;
};

/// Places of all values of `subgraph.body`. `head_room_bytes` as for plan_memory. Deterministic.
/// Errors: kInvalidPlan: two outputs, or an output and an input that it does not update, share
/// bytes.
Result<BodyMemory> plan_body(const Subgraph& subgraph, StorageModel storage, int64_t align_bytes,
                             int64_t head_room_bytes = 0);

}  // namespace sgactor::graph
