#pragma once
#include "actors/strategy/plugin_loader.h"
#include "apps/sgactor/job_spec.h"
#include "graph/base/status.h"

namespace sgactor::apps {

/// Loads the plug-ins that the job names and finds its strategy, with the facts that it asks for;
/// sets job.strategy_in_use, and leaves it empty for "mesh", which is how sgactor trains anyway.
/// `builtin` holds what main() put there. A strategy that keeps state turns resilience.mode "auto"
/// to "off". Writes nothing. Errors: kInvalidArgument, kUnsupported,
/// naming the key, then plug-in or strategy.
Status choose_strategy(const actors::StrategyTable& builtin, JobSpec& job);

/// Whether a run of the job can go on from a checkpoint. Errors: kUnsupported if its strategy keeps
/// state that checkpoints do not hold.
Status check_strategy_resumes(const JobSpec& job);

}  // namespace sgactor::apps
