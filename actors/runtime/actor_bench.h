#pragma once
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <cstdint>

namespace sgactor::actors {

struct ActorBenchResult {
  int32_t num_actors = 0;    ///< subgraph actors in the chain
  int64_t num_handles = 0;   ///< tensor handles passed from one to the next
  int64_t num_messages = 0;  ///< of all actors: handles, leases, turns, completions, steps
  double seconds = 0;        ///< of the steps
  double handles_per_second = 0;
  double messages_per_second = 0;
};

/// Sends `num_messages` tensors through a chain of `num_actors` subgraph actors, `window` of them
/// under way at a time: a plan with that many launches and micro-batches, run by run_training with
/// pool, feeder, lane turns, votes and commits as in any run. On the symbolic backend, whose
/// launches take no time, this is what messages cost. Blocks. Errors: kInvalidArgument for numbers
/// below 1, or above 60000 tensors in the window.
Result<ActorBenchResult> bench_actor_chain(kernels::Backend& symbolic, int32_t num_actors,
                                           int64_t num_messages, int32_t window,
                                           int32_t scheduler_threads = 2);

}  // namespace sgactor::actors
