#pragma once
#include "actors/runtime/training.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_recorder.h"
#include "graph/plan/plan.h"

#include <string>

namespace sgactor::apps {

/// The text of report.json: how the run ended ("done", "interrupted", "failed" with `failure`), its
/// last losses, rates, memory planned and measured, allocations after start, share of time outside
/// kernels, messages, checkpoints.
std::string run_report(const JobSpec& job, const graph::Plan& plan, const RunRecorder& recorder,
                       const actors::TrainingSummary& summary, const Status& failure);

/// Share of the steps' wall time in which the compute lane was not inside kernels, 0 to 1.
double share_outside_kernels(const actors::TrainingSummary& summary);

}  // namespace sgactor::apps
