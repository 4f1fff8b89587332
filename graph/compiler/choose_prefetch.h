#pragma once
#include "graph/compiler/profile.h"
#include "graph/passes/schedule_collectives.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::graph {

struct PrefetchChoice {
  int32_t prefetch = 1;                 ///< for ScheduleOptions
  std::vector<std::string> considered;  ///< each distance and its time, a line each
};

/// How far ahead gathers start: schedule.prefetch, doubled up to `max_prefetch`, each timed on a
/// copy of `plan` by time_schedule(). The least distance whose step is within half a percent of the
/// shortest is taken, since what is fetched early takes memory. Stages are timed alone; the slowest
/// counts. `profile` may be null: the cost model alone. Pre: as of schedule_collectives.
Result<PrefetchChoice> choose_prefetch(const Plan& plan, const ScheduleOptions& schedule,
                                       int32_t max_prefetch, const Profile* profile);

}  // namespace sgactor::graph
