#pragma once
#include "graph/passes/build_update.h"
#include "graph/passes/plan_recompute.h"
#include "graph/plan/plan.h"
#include "tests/differential/random/random_training.h"

#include <cstdint>
#include <string>

namespace sgactor::differential {

/// Which way a random model takes through the passes.
struct Route {
  graph::MeshShape mesh;
  int32_t zero_stage = 0;
  int32_t micro_batches = 1;
  graph::PipelineSchedule schedule = graph::PipelineSchedule::k1F1B;
  int32_t chunks_per_stage = 1;
  bool fuse = false;
  bool narrow = false;  ///< bf16
  graph::RecomputeMode recompute = graph::RecomputeMode::kNone;
  int32_t prefetch = 1;
  int64_t bucket_bytes = 0;
  graph::OptimizerOptions optimizer;
  [[nodiscard]] std::string to_string() const;
};
/// A pure function of the seed; every value of every field comes.
Route draw_route(uint64_t seed);

/// The pipeline of graph/compiler on a model that is no Llama: every pass in its order, the
/// verifier after each. For float64 storage. Errors name the pass.
Result<graph::Plan> compile_random(const RandomModel& model, const Route& route);

}  // namespace sgactor::differential
