#pragma once
#include "graph/cluster/cluster_spec.h"
#include "graph/compiler/profile.h"
#include "graph/models/llama.h"
#include "graph/passes/build_update.h"
#include "graph/passes/choose_layout.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/plan_recompute.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/plan/plan.h"
#include "graph/sharding/parameter_rule.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::graph {

struct CompileOptions {
  int64_t micro_batch_size = 4;   ///< sequences a micro-batch and logical rank
  int32_t num_micro_batches = 1;  ///< a step and logical rank
  int64_t seq_len = 128;
  OptimizerOptions optimizer;
  StorageModel storage = StorageModel::kNative;
  MeshShape mesh;          ///< of logical ranks: dp is the number of logical data-parallel ranks
  int32_t zero_stage = 0;  ///< 0 to 3 (data_parallel.h)
  /// Sums over dp by the fixed tree (Communication::exact); false: in the order of a ring of the
  /// ranks, which is less to send. The same bits in every run either way, not the same as each
  /// other's. Sums of hashes (StorageModel::kHash) are exact in any case.
  bool exact_sums = true;
  PipelineSchedule pipeline = PipelineSchedule::k1F1B;
  int32_t chunks_per_stage = 1;  ///< kInterleaved: pieces of the model a pipeline stage holds
  /// Of a strategy, for apply_sharding: they come before the Llama family's table.
  std::vector<ParameterRule> parameter_rules;
  ScheduleOptions schedule;
  int32_t max_prefetch = 4;  ///< schedule.prefetch is doubled up to this where that saves time
  /// Chooses schedule.bucket_bytes by predicted times; false: it stays as it is.
  bool choose_buckets = true;
  std::shared_ptr<const ClusterSpec> cluster;  ///< that costs are of; null: CostModel's default
  std::shared_ptr<const Profile> profile;      ///< measured times; null: the cost model alone
  bool fuse = true;
  RecomputeOptions recompute;  ///< of plan_recompute
  /// Of infer_precision: kF32, kBF16, or kF8E4M3: as kBF16, and the products of the layers' linear
  /// maps read 8-bit floats (infer_precision_f8). A graph that only runs forward is then in bf16.
  DType precision = DType::kF32;
  bool f8_head = true;                  ///< with kF8E4M3: the fused head reads 8-bit floats too
  F8Layout f8_layout = F8Layout::kAny;  ///< of choose_layout: what the backend wants
  int64_t head_room_bytes = 0;          ///< of plan_memory: for the backend's block of logits
  std::vector<std::string> disabled_passes;  ///< names of optional passes: fuse_ops; or of one
                                             ///< fusion: fuse_ops.swiglu
  /// Called after each pass with its name and the graphs' text form, for --dump-ir; may be empty.
  std::function<void(const std::string& pass, const Graph& training, const Graph& update)> dump;
};

struct PassRecord {
  std::string name;
  double ms = 0;
  int32_t ops_before = 0, ops_after = 0;
  std::string note;                  ///< what changed and why, one line
  std::vector<std::string> details;  ///< the same in full, a line each; may be empty
};

struct Compiled {
  Plan plan;
  std::vector<PassRecord> passes;
  std::vector<FusionReport> fusions;
};

/// Model and options to a verified plan, by one visible list of passes (pipeline.cc), each timed
/// and verified after. Pure: no device, no thread, no file. Deterministic. Errors name the pass.
Result<Compiled> compile_training(const LlamaConfig& model, const CompileOptions& options);
/// Forward only, one batch: output kLogits, or kLoss with `loss`. Of `options` only storage, mesh,
/// zero_stage, pipeline, schedule, fuse, precision, disabled_passes and dump count.
Result<Compiled> compile_forward(const LlamaConfig& model, const ForwardOptions& forward,
                                 const CompileOptions& options);

}  // namespace sgactor::graph
