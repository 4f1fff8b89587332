#pragma once
#include "actors/protocol/wire.h"
#include "actors/runtime/training.h"
#include "actors/strategy/strategy.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/status.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sgactor::apps {

/// What a worker process makes of a LoadPlan: the job, its data and the plan, which it does not
/// compile itself. `key` names those; the rest, `state` and `spec`, differs from life to life.
struct LoadedJob {
  uint64_t key = 0;
  JobSpec job;
  graph::LlamaConfig config;
  graph::Plan plan;
  std::optional<graph::Plan> validation;
  TrainingData data;
  std::unique_ptr<transport::StateSource> state;
  actors::TrainingSpec spec;
};
/// All but state and spec: what a spare does before it is needed. Checks that the job hashes to
/// what the coordinator says. Errors: kInvalidArgument (another job, data that is not there),
/// kCorruption, kInvalidPlan.
Result<std::unique_ptr<LoadedJob>> prepare_plan(const actors::wire::LoadPlan& message,
                                                const actors::StrategyTable& strategies);
/// The whole. `ready` was prepared before, or is null; it is used if it is of the same job and
/// plan. Errors: as prepare_plan's.
Result<std::unique_ptr<LoadedJob>> load_plan(const actors::wire::LoadPlan& message,
                                             int32_t scheduler_threads,
                                             const actors::StrategyTable& strategies,
                                             std::unique_ptr<LoadedJob> ready);

}  // namespace sgactor::apps
