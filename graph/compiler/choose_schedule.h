#pragma once
#include "graph/compiler/profile.h"
#include "graph/passes/schedule_collectives.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::graph {

/// What choose_schedule may decide.
struct ScheduleLimits {
  int32_t max_prefetch = 4;    ///< gathers start no further ahead
  bool choose_buckets = true;  ///< false: ScheduleOptions::bucket_bytes is as the job says
};

struct ScheduleChoice {
  ScheduleOptions options;
  std::vector<std::string> considered;  ///< each candidate, its time, and what was taken and why
};

/// "a segment each" or "of 4.00 MiB".
std::string describe_bucket(int64_t bytes);

/// Bytes of a bucket, then how far ahead gathers start; each candidate is laid out on a copy of
/// `plan`'s programs and timed by time_schedule(). Stages are timed alone; the slowest counts.
///
/// Buckets: a segment's tensors each, and sizes of 64 KiB times powers of four up to all bytes of a
/// kind. A bucket costs its latency once, so few and slow links want large ones; a small one starts
/// earlier and leaves less behind the last gradient. A segment each is taken where its step is
/// within half a percent of the shortest, else the smallest size that is: what is joined is held
/// longer. Prefetch: schedule.prefetch, doubled up to `max_prefetch`; likewise the least distance.
/// Pure. Pre: as of schedule_collectives; `times` is of this plan.
ScheduleChoice choose_schedule(const Plan& plan, const ScheduleOptions& schedule,
                               const ScheduleLimits& limits, const LaunchTimes& times);

}  // namespace sgactor::graph
