#pragma once
#include "apps/sgactor/job_spec.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>

namespace sgactor::apps {

/// Milliseconds that a step is expected to take where `workers` processes with `devices` each host
/// as many of the plan's ranks, one after the other: by the times that profile.use names, else by
/// the cost model of the devices of compile.topology, else by that of the default device, where
/// `devices` are of its kind ("cuda…"), else (on CPUs) by FLOPs at 20 GFLOP/s. 0: nothing is known
/// of this device. No bound: a pipeline's stages may wait for each other besides. Reads files.
double expected_step_ms(const JobSpec& job, const graph::Plan& plan, const std::string& devices,
                        int64_t workers);

}  // namespace sgactor::apps
