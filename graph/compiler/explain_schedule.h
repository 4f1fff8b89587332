#pragma once
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::graph {

/// A roofline: a launch takes launch_s, and the longer of its operations and its bytes.
struct DeviceModel {
  double flops_per_s = 500e12;
  double bytes_per_s = 4e12;
  double link_bytes_per_s = 200e9;  ///< of a launch that communicates, bytes of its inputs
  double launch_s = 3e-6;
};

struct TimedFiring {
  int32_t lane = 0;
  LaunchId launch = kNoLaunch;
  int32_t micro_batch = 0;
  double start_s = 0;
  double end_s = 0;
};

/// Seconds of one firing of a launch by the model.
double estimate_launch(const Plan& plan, const RankProgram& program, const Launch& launch,
                       const DeviceModel& model);

/// A step of `program` in the order that its lanes fix: each firing starts once its lane is free,
/// its producers have ended and, on other lanes than 0, `Firing::start` firings of lane 0 have
/// begun. `launch_s` gives the seconds of each launch (measured ones, or estimate_launch). In the
/// order in which they are granted. Pure. Pre: verify_plan is ok; one entry a launch.
std::vector<TimedFiring> time_schedule(const RankProgram& program,
                                       const std::vector<double>& launch_s);

/// Share of the time in which lanes other than 0 work that lane 0 works too; 1 if they are idle.
double overlap_share(const std::vector<TimedFiring>& firings);

}  // namespace sgactor::graph
