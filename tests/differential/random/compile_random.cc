#include "tests/differential/random/compile_random.h"

#include "graph/base/philox.h"
#include "graph/ir/verify.h"
#include "graph/passes/apply_sharding.h"
#include "graph/passes/choose_layout.h"
#include "graph/passes/data_parallel.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/infer_precision.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/passes/split_stages.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

namespace sgactor::differential {
namespace {

using graph::Graph;
using graph::Plan;

struct Work {
  const RandomModel& model;
  const Route& route;
  Graph training = {};
  Graph update = {};
  std::vector<graph::ParameterSharding> cuts = {};
  graph::DataParallel dp = {};
};

Status check(const Work& w, const char* pass) {
  SGA_TRY(graph::verify(w.training).with_context(fmt::format("{}: training graph", pass)));
  return graph::verify(w.update).with_context(fmt::format("{}: update graph", pass));
}

std::vector<graph::ParameterSpec> local_parameters(const Work& w) {
  std::vector<graph::ParameterSpec> specs = w.model.parameters;
  for (graph::ParameterSpec& spec : specs) {
    for (const graph::ParameterSharding& cut : w.cuts) {
      if (cut.name == spec.name) spec.type = cut.local;
    }
  }
  return specs;
}

Status shard(Work& w) {
  if (w.route.mesh.tp > 1) {
    SGA_ASSIGN(
        graph::ShardedTraining sharded,
        graph::shard_training(w.training, {.members = w.route.mesh.tp, .rules = w.model.rules}));
    w.training = std::move(sharded.graph);
    w.cuts = std::move(sharded.parameters);
  }
  SGA_TRY(check(w, "apply_sharding"));
  w.dp = {w.route.mesh.dp, w.route.zero_stage, w.route.optimizer.norm_chunk, w.route.micro_batches};
  SGA_ASSIGN(w.training, graph::apply_data_parallel(w.training, w.dp));
  return check(w, "insert_collectives");
}

Status add_update(Work& w) {
  SGA_ASSIGN(w.training, graph::accumulate_microbatches(w.training));
  SGA_TRY(check(w, "accumulate_microbatches"));
  SGA_ASSIGN(auto parameters,
             graph::collect_update_parameters(w.training, local_parameters(w), w.dp));
  for (graph::UpdateParameter& p : parameters) {
    for (const graph::ParameterSharding& cut : w.cuts) {
      if (cut.name == p.spec.name) p.tp_sharded = cut.tp_dim >= 0;
    }
  }
  SGA_ASSIGN(w.update, graph::build_update(parameters, w.route.optimizer, w.dp));
  return check(w, "build_update");
}

Status rewrite(Work& w) {
  if (w.route.fuse) {
    for (Graph* g : {&w.training, &w.update}) {
      graph::FusionOptions options;
      options.narrow = w.route.narrow;
      SGA_ASSIGN(*g, graph::fuse_ops(*g, nullptr, options));
    }
    SGA_TRY(check(w, "fuse_ops"));
  }
  SGA_ASSIGN(w.training,
             graph::infer_precision(w.training, w.route.narrow ? DType::kBF16 : DType::kF32));
  SGA_TRY(check(w, "infer_precision"));
  SGA_ASSIGN(w.training, graph::choose_layout(w.training, graph::F8Layout::kAny));
  SGA_TRY(check(w, "choose_layout"));
  const graph::MeasurePlan none = [](const Graph&) -> Result<graph::MemoryStats> {
    return graph::MemoryStats{};
  };
  SGA_ASSIGN(w.training, graph::plan_recompute(w.training, {w.route.recompute, 0}, none));
  return check(w, "plan_recompute");
}

/// What whole tensors the plan's buffers are parts of, as the compiler notes it.
void note_slices(const Work& w, Plan& plan) {
  std::map<std::string, graph::StateSlice> slices;
  for (const graph::ParameterSpec& spec : w.model.parameters) {
    graph::StateSlice slice;
    slice.full = spec.type.shape;
    TensorType local = spec.type;
    for (const graph::ParameterSharding& cut : w.cuts) {
      if (cut.name != spec.name) continue;
      slice.tp_dim = cut.tp_dim;
      local = cut.local;
    }
    if (w.dp.shards_state()) slice.dp_piece = w.dp.piece(local.num_elements());
    if (!slice.sharded()) continue;
    for (const char* prefix : {"", "m/", "v/"}) slices[prefix + spec.name] = slice;
  }
  for (graph::RankProgram& program : plan.programs) {
    for (graph::Buffer& b : program.buffers) {
      if (b.kind != graph::BufferKind::kParameter && b.kind != graph::BufferKind::kMoment) continue;
      if (const auto found = slices.find(b.name); found != slices.end()) b.slice = found->second;
    }
  }
}

Result<Plan> lay_out(const Work& w) {
  const Route& r = w.route;
  auto cut = graph::partition_subgraphs(w.training, w.update, r.micro_batches,
                                        graph::StorageModel::kFloat64);
  if (!cut.ok()) return cut.status().with_context("partition_subgraphs");
  Plan plan = std::move(*cut);
  SGA_TRY(graph::split_stages(plan, {r.mesh.pp, r.chunks_per_stage, r.schedule, {}})
              .with_context("split_stages"));
  graph::place_ranks(plan, r.mesh);
  note_slices(w, plan);
  plan.zero_stage = r.zero_stage;
  SGA_TRY(
      graph::schedule_collectives(plan, {.prefetch = r.prefetch, .bucket_bytes = r.bucket_bytes})
          .with_context("schedule_collectives"));
  SGA_TRY(graph::plan_memory(plan).with_context("plan_memory"));
  SGA_TRY(graph::verify_plan(plan).with_context("verify_plan"));
  return plan;
}

}  // namespace

std::string Route::to_string() const {
  return fmt::format(
      "pp {} dp {} tp {}, ZeRO {}, {} micro-batches, schedule {} with {} chunks, {}fused, {}, "
      "recompute {}, prefetch {}, buckets of {}",
      mesh.pp, mesh.dp, mesh.tp, zero_stage, micro_batches, static_cast<int>(schedule),
      chunks_per_stage, fuse ? "" : "not ", narrow ? "bf16" : "f32", graph::to_string(recompute),
      prefetch, bucket_bytes);
}

Route draw_route(uint64_t seed) {
  const PhiloxStream draw{seed, 77};
  uint64_t next = 0;
  const auto below = [&](uint64_t n) { return static_cast<int32_t>(draw.below(next++, n)); };
  Route r;
  r.mesh.dp = 1 + below(3);
  r.mesh.tp = 1 + (below(3) == 0 ? 1 : 0);
  r.mesh.pp = 1 + (below(3) == 0 ? 1 : 0);
  r.zero_stage = below(4);
  r.micro_batches = below(2) == 0 ? 1 : 1 + below(3);
  if (r.mesh.pp > 1) {
    r.schedule = static_cast<graph::PipelineSchedule>(below(3));
    if (r.schedule == graph::PipelineSchedule::kInterleaved) r.chunks_per_stage = 2;
  }
  r.fuse = below(2) == 0;
  r.recompute = static_cast<graph::RecomputeMode>(below(3));
  r.prefetch = below(4);
  constexpr std::array<int64_t, 5> kBuckets = {0, 1, 100, 600, 1 << 20};
  r.bucket_bytes = kBuckets[static_cast<size_t>(below(kBuckets.size()))];
  r.optimizer.lr = 0.01;
  r.optimizer.warmup_steps = 0;
  r.optimizer.norm_chunk = 4;
  return r;
}

Result<Plan> compile_random(const RandomModel& model, const Route& route) {
  Work w{model, route};
  SGA_ASSIGN(w.training, graph::differentiate(model.forward));
  SGA_TRY(check(w, "differentiate"));
  SGA_TRY(shard(w).with_context("sharding"));
  SGA_TRY(add_update(w).with_context("update"));
  SGA_TRY(rewrite(w).with_context("rewriting"));
  return lay_out(w);
}

}  // namespace sgactor::differential
