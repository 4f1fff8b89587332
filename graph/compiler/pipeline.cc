#include "graph/compiler/pipeline.h"

#include "graph/base/units.h"
#include "graph/compiler/choose_schedule.h"
#include "graph/ir/serial.h"
#include "graph/ir/verify.h"
#include "graph/passes/apply_sharding.h"
#include "graph/passes/data_parallel.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/infer_precision.h"
#include "graph/passes/infer_precision_f8.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"
#include "graph/passes/plan_recompute.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/passes/split_stages.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>

namespace sgactor::graph {
namespace {

/// What the passes work on. A pass replaces what it changes and leaves a line in `note`.
struct Work {
  const LlamaConfig& model;
  const CompileOptions& options;
  ForwardOptions forward;
  Graph training = {};  ///< or the forward graph alone
  Graph update = {};
  std::vector<ParameterSharding> tp = {};  ///< of parameters, where tp cuts
  DataParallel dp = {};
  bool has_plan = false;
  bool explains = true;  ///< false: on trial, nobody reads what is noted
  Compiled result = {};
  std::string note = {};
  std::vector<std::string> details = {};

  [[nodiscard]] int32_t num_ops() const {
    return static_cast<int32_t>(training.ops().size() + update.ops().size());
  }
};

constexpr int64_t kAlignBytes = 256;  // of the arena

struct Pass {
  std::string_view name;
  Status (*run)(Work& work);
  bool optional = false;
};

Status run_build_model(Work& w) {
  SGA_ASSIGN(w.training, build_llama(w.model, w.forward));
  w.note =
      fmt::format("{} parameters", format_count(static_cast<double>(count_parameters(w.model))));
  return {};
}

Status run_differentiate(Work& w) {
  SGA_ASSIGN(w.training, differentiate(w.training));
  w.note = "the backward graph, a gradient a use of a parameter";
  return {};
}

Status run_accumulate(Work& w) {
  SumOptions options{w.options.num_micro_batches == 1, w.options.mesh.pp == 1};
  if (options.one_stage && w.dp.degree == 1) options.norm_chunk = w.dp.chunk;
  SGA_ASSIGN(w.training, accumulate_microbatches(w.training, options));
  w.note = options.one_micro_batch ? "one micro-batch: gradients and loss are their own sums"
                                   : "gradients and loss add up over micro-batches in place";
  return {};
}

/// The model's parameters as one rank of tp holds them.
std::vector<ParameterSpec> local_parameters(const Work& w) {
  std::vector<ParameterSpec> specs = llama_parameters(w.model);
  for (ParameterSpec& spec : specs) {
    for (const ParameterSharding& cut : w.tp) {
      if (cut.name == spec.name) spec.type = cut.local;
    }
  }
  return specs;
}

Status run_apply_sharding(Work& w) {
  if (w.options.mesh.tp == 1) {
    w.note = "tp 1: nothing to cut";
    return {};
  }
  ShardingOptions options;
  options.members = w.options.mesh.tp;
  options.rules = w.options.parameter_rules;
  const std::vector<ParameterRule> table =
      llama_parameter_rules(w.model.num_attention_heads, w.model.num_key_value_heads);
  options.rules.insert(options.rules.end(), table.begin(), table.end());
  SGA_ASSIGN(const ShardingDecisions decisions, apply_sharding(w.training, options));
  w.details = explain_sharding(w.training, decisions);
  SGA_ASSIGN(ShardedTraining sharded, shard_training(w.training, options));
  w.training = std::move(sharded.graph);
  w.tp = std::move(sharded.parameters);
  const auto cut = std::count_if(w.tp.begin(), w.tp.end(),
                                 [](const ParameterSharding& p) { return p.tp_dim >= 0; });
  w.note = fmt::format("{} of {} parameters cut over tp {}", cut, w.tp.size(), options.members);
  return {};
}

Status run_insert_collectives(Work& w) {
  int64_t elements = 0;
  for (const ParameterSpec& spec : local_parameters(w)) elements += spec.type.num_elements();
  const int64_t chunk = w.options.optimizer.norm_chunk;
  w.dp = {w.options.mesh.dp, w.options.zero_stage, chunk > 0 ? chunk : norm_chunk_of(elements),
          w.options.num_micro_batches};
  SGA_ASSIGN(w.training, apply_data_parallel(w.training, w.dp));
  w.note = w.dp.degree == 1
               ? "dp 1: nothing to sum"
               : fmt::format(
                     "dp {}, ZeRO {}, gradients {}", w.dp.degree, w.dp.zero_stage,
                     w.dp.shards_gradients() ? "reduced as they are made" : "reduced once a step");
  return {};
}

Status run_build_update(Work& w) {
  SGA_ASSIGN(std::vector<UpdateParameter> parameters,
             collect_update_parameters(w.training, local_parameters(w), w.dp));
  for (UpdateParameter& p : parameters) {
    for (const ParameterSharding& cut : w.tp) {
      if (cut.name == p.spec.name) p.tp_sharded = cut.tp_dim >= 0;
    }
  }
  OptimizerOptions optimizer = w.options.optimizer;
  if (optimizer.norm_chunk == 0) optimizer.norm_chunk = w.dp.chunk;
  SGA_ASSIGN(w.update, build_update(parameters, optimizer, w.dp));
  w.note = fmt::format("norm, clipping, schedule and AdamW of {} tensors", parameters.size());
  w.result.plan.ops_before = w.num_ops();
  return {};
}

/// The schema is that of the graph before any rewrite, so that it depends on neither mesh nor
/// options of the compiler.
Status run_note_schema(Work& w) {
  w.result.plan.ops_before = w.num_ops();
  w.note = "the training graph's identity, before any rewrite";
  if (w.training.find_output(Role::kLoss, "") == kNoValue && w.training.outputs().size() < 2) {
    w.result.plan.schema_hash = schema_hash(w.training);
    return {};
  }
  SGA_ASSIGN(const Graph whole, accumulate_microbatches(w.training));
  w.result.plan.schema_hash = schema_hash(whole);
  return {};
}

constexpr std::string_view kFusionPrefix = "fuse_ops.";

FusionOptions fusion_options(const CompileOptions& options) {
  FusionOptions fusion;
  for (const std::string& name : options.disabled_passes) {
    if (name.starts_with(kFusionPrefix))
      fusion.disabled.push_back(name.substr(kFusionPrefix.size()));
  }
  fusion.narrow = options.precision != DType::kF32;
  fusion.eight_bits = options.precision == DType::kF8E4M3;
  return fusion;
}

Status run_fuse_ops(Work& w) {
  const FusionOptions options = fusion_options(w.options);
  for (Graph* graph : {&w.training, &w.update}) {
    if (graph->ops().empty()) continue;
    std::vector<FusionReport> report;
    SGA_ASSIGN(*graph, fuse_ops(*graph, &report, options));
    for (const FusionReport& r : report) {
      auto& all = w.result.fusions;
      const auto known = std::find_if(
          all.begin(), all.end(), [&](const FusionReport& k) { return k.pattern == r.pattern; });
      if (known == all.end()) {
        all.push_back(r);
      } else {
        known->count += r.count;
      }
    }
  }
  for (const FusionReport& r : w.result.fusions) {
    w.note += fmt::format("{}{} {}", w.note.empty() ? "" : ", ", r.count, r.pattern);
  }
  return {};
}

Status run_infer_precision(Work& w) {
  PrecisionReport report;
  const bool f8 = w.options.precision == DType::kF8E4M3;
  // Stages hold several micro-batches at once, and recompute is asked for to save memory.
  const bool keep = w.options.mesh.pp == 1 && w.options.recompute.mode == RecomputeMode::kNone;
  SGA_ASSIGN(w.training, infer_precision(w.training, f8 ? DType::kBF16 : w.options.precision,
                                         &report, {.keep_casts = keep}));
  const auto narrow = std::count_if(report.decisions.begin(), report.decisions.end(),
                                    [](const PrecisionDecision& d) { return d.narrow; });
  w.note = report.decisions.empty()
               ? "f32 throughout, as the job asks"
               : fmt::format("{} of {} ops in {}; casts: {} of parameters, {} of other values",
                             narrow, report.decisions.size(), dtype_name(report.narrow),
                             report.num_parameter_casts, report.num_other_casts);
  w.details = explain_precision(report);
  if (!f8 || w.update.ops().empty()) return {};
  F8Report products;
  SGA_ASSIGN(w.training, infer_precision_f8(w.training, &products,
                                            {.head = w.options.f8_head, .keep_weights = keep}));
  SGA_ASSIGN(w.update,
             update_f8_scales(w.update, products.tensors, w.options.mesh.dp, w.options.mesh.tp));
  w.note +=
      fmt::format("; {} products in f8, head in {}, {} tensors with scales", products.num_products,
                  products.num_heads > 0 ? "f8" : "bf16", products.tensors.size());
  for (std::string& line : explain_f8(products)) w.details.push_back(std::move(line));
  return {};
}

Status run_choose_layout(Work& w) {
  LayoutReport report;
  SGA_ASSIGN(w.training, choose_layout(w.training, w.options.f8_layout, &report));
  w.details = explain_layout(report);
  w.note = w.options.f8_layout == F8Layout::kAny
               ? "every operand as it lies"
               : fmt::format("8-bit tensors: {} as they lie, {} transposed, {} both ways",
                             report.num_as_is, report.num_transposed, report.num_both);
  return {};
}

/// Puts the cut plan where the facts noted earlier stay.
void adopt_plan(Work& w, Plan plan) {
  plan.schema_hash = w.result.plan.schema_hash;
  plan.ops_before = w.result.plan.ops_before;
  plan.ops_after = w.num_ops();
  plan.num_parameters = count_parameters(w.model);
  plan.flops_per_token = flops_per_token(w.model, w.forward.seq_len);
  w.note = fmt::format("{} launches of {} subgraphs", plan.programs[0].launches.size(),
                       plan.subgraphs.size());
  w.result.plan = std::move(plan);
}

Status run_partition(Work& w) {
  SGA_ASSIGN(Plan plan, partition_subgraphs(w.training, w.update, w.options.num_micro_batches,
                                            w.options.storage));
  adopt_plan(w, std::move(plan));
  return {};
}

Status run_partition_forward(Work& w) {
  SGA_ASSIGN(Plan plan, partition_forward(w.training, w.options.storage));
  adopt_plan(w, std::move(plan));
  return {};
}

/// What checkpoints call the tensors that this plan holds parts of.
void note_slices(Work& w) {
  std::map<std::string, StateSlice> slices;
  for (const ParameterSpec& spec : llama_parameters(w.model)) {
    StateSlice slice;
    slice.full = spec.type.shape;
    TensorType local = spec.type;
    for (const ParameterSharding& cut : w.tp) {
      if (cut.name != spec.name) continue;
      slice.tp_dim = cut.tp_dim;
      local = cut.local;
    }
    if (w.dp.shards_state()) slice.dp_piece = w.dp.piece(local.num_elements());
    if (!slice.sharded()) continue;
    for (const char* prefix : {"", "m/", "v/"}) slices[prefix + spec.name] = slice;
  }
  for (RankProgram& program : w.result.plan.programs) {
    for (Buffer& b : program.buffers) {
      if (b.kind != BufferKind::kParameter && b.kind != BufferKind::kMoment) continue;
      if (const auto found = slices.find(b.name); found != slices.end()) b.slice = found->second;
    }
  }
}

/// Lets sums over dp add in an order of their own.
void relax_sums(Plan& plan) {
  for (RankProgram& program : plan.programs) {
    for (Launch& l : program.launches) {
      if (l.kind != LaunchKind::kAllReduce && l.kind != LaunchKind::kReduceScatter) continue;
      Communication& c = l.communication;
      const bool over_dp = plan.groups[static_cast<size_t>(c.group)].axis == MeshAxis::kDp;
      if (over_dp && c.reduction == Reduction::kSum) c.exact = false;
    }
  }
}

/// What a micro-batch costs each stage, a line each.
std::vector<std::string> explain_stages(const Plan& plan, const std::vector<double>& cost,
                                        bool measured) {
  std::vector<std::string> lines;
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    std::vector<int32_t> segments;
    double sum = 0;
    for (const Launch& l : plan.programs[p].launches) {
      if (l.kind != LaunchKind::kSubgraph || !fires_per_micro_batch(l.phase)) continue;
      sum += cost[static_cast<size_t>(l.subgraph)];
      if (l.phase == Phase::kForward) segments.push_back(l.segment);
    }
    if (segments.empty()) continue;
    const auto name = [&](int32_t s) { return plan.segments[static_cast<size_t>(s)]; };
    lines.push_back(fmt::format(
        "stage {}: {} to {}, {} a micro-batch", p, name(segments.front()), name(segments.back()),
        measured ? format_seconds(sum * 1e-9) : format_count(sum) + "FLOP"));
  }
  return lines;
}

Status run_split_stages(Work& w) {
  const MeshShape& mesh = w.options.mesh;
  PipelineOptions options{mesh.pp, w.options.chunks_per_stage, w.options.pipeline, {}};
  const LaunchTimes times(w.result.plan, w.options.profile.get(), w.options.cluster.get());
  if (w.options.profile != nullptr) {
    for (const double s : times.subgraph_seconds()) options.subgraph_cost.push_back(s * 1e9);
  } else {
    for (const Subgraph& s : w.result.plan.subgraphs) options.subgraph_cost.push_back(s.flops);
  }
  SGA_TRY(split_stages(w.result.plan, options));
  if (mesh.pp > 1) {
    w.details = explain_stages(w.result.plan, options.subgraph_cost, w.options.profile != nullptr);
  }
  place_ranks(w.result.plan, mesh);
  if (!w.options.exact_sums && w.options.storage != StorageModel::kHash) relax_sums(w.result.plan);
  note_slices(w);
  w.result.plan.zero_stage = w.dp.shards_state() ? w.dp.zero_stage : 0;
  w.note = fmt::format("{} program{} for {} logical ranks", w.result.plan.programs.size(),
                       w.result.plan.programs.size() == 1 ? "" : "s", mesh.num_ranks());
  if (mesh.pp > 1 && w.options.profile != nullptr) w.note += "; " + times.describe_subgraphs();
  return {};
}

Status run_schedule_collectives(Work& w) {
  const Profile* profile = w.options.profile.get();
  const LaunchTimes times(w.result.plan, profile, w.options.cluster.get());
  const ScheduleLimits limits{w.options.max_prefetch, w.options.choose_buckets};
  ScheduleChoice choice = choose_schedule(w.result.plan, w.options.schedule, limits, times);
  SGA_TRY(schedule_collectives(w.result.plan, choice.options));
  w.details = std::move(choice.considered);
  size_t num_lanes = 0;
  for (const RankProgram& p : w.result.plan.programs) num_lanes += p.lanes.size() - 1;
  if (num_lanes == 0) {
    w.note = "nothing communicates";
    return {};
  }
  w.note =
      fmt::format("{} lanes of communication, gathers {} launches ahead, buckets {}", num_lanes,
                  choice.options.prefetch, describe_bucket(choice.options.bucket_bytes));
  if (profile != nullptr) {
    w.note += fmt::format("; {}, {}", times.describe_subgraphs(), times.describe_communication());
  }
  return {};
}

/// What each packer would take, beside what none can beat.
std::vector<std::string> explain_packing(const MemoryReport& report) {
  std::vector<std::string> lines;
  for (const PackerTotal& p : report.packers) {
    lines.push_back(
        fmt::format("{}: {} for {} buffers, {:+.2f} % of what is live at once", p.packer,
                    format_bytes(p.total_bytes), report.num_ranges,
                    100 * (static_cast<double>(p.total_bytes) /
                               static_cast<double>(std::max<int64_t>(report.live_bytes, 1)) -
                           1)));
  }
  return lines;
}

Status run_plan_memory(Work& w) {
  MemoryReport report;
  SGA_TRY(plan_memory(w.result.plan, kAlignBytes, w.explains ? &report : nullptr,
                      w.options.head_room_bytes));
  const MemoryStats& m = w.result.plan.memory;
  w.note = fmt::format("{} instead of {}, lower bound {}", format_bytes(m.planned_bytes),
                       format_bytes(m.naive_bytes), format_bytes(m.lower_bound_bytes));
  w.details = explain_packing(report);
  w.has_plan = true;
  return {};
}

/// What takes a program's memory.
MemoryStats parts_of(const RankProgram& program) {
  MemoryStats m;
  m.planned_bytes = program.arena_bytes;
  int64_t persistent = 0;
  for (const Buffer& b : program.buffers) {
    if (b.kind == BufferKind::kParameter) m.parameter_bytes += b.bytes;
    if (b.kind == BufferKind::kMoment) m.moment_bytes += b.bytes;
    if (b.kind == BufferKind::kAccumulator) m.accumulator_bytes += b.bytes;
    if (is_persistent(b.kind)) persistent += round_up(b.bytes, kAlignBytes) * b.num_slots;
  }
  m.activation_peak_bytes = program.arena_bytes - persistent;
  return m;
}

/// Needs the plan's memory to keep a budget, so the passes behind it run on trial. Of the program
/// that takes most; notes which one by its bytes.
Result<MemoryStats> measure_memory(const Work& w, const Graph& training,
                                   std::map<int64_t, size_t>& largest) {
  Work trial = w;
  trial.training = training;
  trial.explains = false;
  SGA_TRY(run_partition(trial));
  SGA_TRY(run_split_stages(trial));
  SGA_TRY(run_schedule_collectives(trial));
  SGA_TRY(run_plan_memory(trial));
  const std::vector<RankProgram>& programs = trial.result.plan.programs;
  const auto most =
      std::max_element(programs.begin(), programs.end(),
                       [](const auto& a, const auto& b) { return a.arena_bytes < b.arena_bytes; });
  largest[most->arena_bytes] = static_cast<size_t>(most - programs.begin());
  return parts_of(*most);
}

Status run_plan_recompute(Work& w) {
  if (w.options.recompute.mode == RecomputeMode::kNone &&
      w.options.recompute.memory_budget_bytes == 0) {
    w.note = "none, as the job asks";
    return {};
  }
  RecomputeReport report;
  std::map<int64_t, size_t> largest;  // programs, by the bytes of their arenas
  Result<Graph> planned = plan_recompute(
      w.training, w.options.recompute,
      [&](const Graph& training) { return measure_memory(w, training, largest); }, &report);
  if (!planned.ok()) {
    const Status& s = planned.status();
    if (w.options.mesh.pp == 1 || report.least_bytes == 0) return s;
    return {s.code(), s.scope(),
            fmt::format("{}; of pipeline stage {}, the largest of {}", s.message(),
                        largest[report.least_bytes], w.options.mesh.pp),
            s.origin()};
  }
  w.training = std::move(*planned);
  w.note =
      fmt::format("{}: {} ops computed again, {:.1f} % of the forward pass; saved {} of {}",
                  to_string(w.options.recompute.mode), report.num_recomputed,
                  100 * report.recomputed_flops / std::max(report.forward_flops, 1.0),
                  format_bytes(report.saved_after_bytes), format_bytes(report.saved_before_bytes));
  return {};
}

// The lists. Order matters; each line says why it stands where it does.
constexpr Pass kTrainingPasses[] = {
    {"build_model", run_build_model},                // primitive ops only, one micro-batch
    {"differentiate", run_differentiate},            // needs primitives: fused ops have no gradient
    {"note_schema", run_note_schema},                // before the first rewrite
    {"apply_sharding", run_apply_sharding},          // one graph for every rank of tp
    {"insert_collectives", run_insert_collectives},  // of dp, on what a rank of tp holds
    {"accumulate_microbatches", run_accumulate},     // sums of what is not reduced at once
    {"build_update", run_build_update},              // needs to know the accumulators
    {"fuse_ops", run_fuse_ops, true},                // before the cut: patterns lie within segments
    {"infer_precision", run_infer_precision},        // after fusion: patterns hold no casts
    {"choose_layout", run_choose_layout},            // before clones read what it decides
    {"plan_recompute", run_plan_recompute},          // on fused ops in their final dtypes
    {"partition_subgraphs", run_partition},          // the last pass that sees whole graphs
    {"split_stages", run_split_stages},              // needs the cut's costs
    {"schedule_collectives", run_schedule_collectives},  // needs the order of what computes
    {"plan_memory", run_plan_memory},                    // needs the final order
};
constexpr Pass kForwardPasses[] = {
    {"build_model", run_build_model},
    {"note_schema", run_note_schema},
    {"apply_sharding", run_apply_sharding},
    {"insert_collectives", run_insert_collectives},
    {"fuse_ops", run_fuse_ops, true},
    {"infer_precision", run_infer_precision},
    {"partition_subgraphs", run_partition_forward},
    {"split_stages", run_split_stages},
    {"schedule_collectives", run_schedule_collectives},
    {"plan_memory", run_plan_memory},
};

Status verify_work(const Work& w) {
  SGA_TRY(verify(w.training).with_context("training graph"));
  SGA_TRY(verify(w.update).with_context("update graph"));
  return w.has_plan ? verify_plan(w.result.plan) : Status();
}

Status check_disabled(std::span<const Pass> passes, const CompileOptions& options) {
  for (const std::string& name : options.disabled_passes) {
    const auto pass =
        std::find_if(passes.begin(), passes.end(), [&](const Pass& p) { return p.name == name; });
    if (pass != passes.end() && pass->optional) continue;
    if (name.starts_with(kFusionPrefix)) continue;  // fuse_ops knows its patterns
    std::string known;
    for (const Pass& p : passes) {
      if (p.optional) known += fmt::format("{}{}", known.empty() ? "" : ", ", p.name);
    }
    return invalid_argument(fmt::format("pass \"{}\" {}; those that can be disabled: {}", name,
                                        pass == passes.end() ? "does not exist" : "is needed",
                                        known));
  }
  return {};
}

bool is_enabled(const Pass& pass, const CompileOptions& options) {
  if (!pass.optional) return true;
  const auto& disabled = options.disabled_passes;
  if (std::find(disabled.begin(), disabled.end(), pass.name) != disabled.end()) return false;
  return pass.name != "fuse_ops" || options.fuse;
}

double elapsed_ms(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

Result<Compiled> run_passes(std::span<const Pass> passes, Work work) {
  const auto start = std::chrono::steady_clock::now();
  SGA_TRY(check_disabled(passes, work.options));
  for (const Pass& pass : passes) {
    if (!is_enabled(pass, work.options)) continue;
    const auto pass_start = std::chrono::steady_clock::now();
    PassRecord record;
    record.name = pass.name;
    record.ops_before = work.num_ops();
    work.note.clear();
    work.details.clear();
    SGA_TRY(pass.run(work).with_context(pass.name));
    SGA_TRY(verify_work(work).with_context("after " + record.name));
    record.ops_after = work.num_ops();
    record.ms = elapsed_ms(pass_start);
    record.note = work.note;
    record.details = work.details;
    work.result.passes.push_back(std::move(record));
    if (work.options.dump) work.options.dump(std::string(pass.name), work.training, work.update);
  }
  work.result.plan.compile_ms = elapsed_ms(start);
  return std::move(work.result);
}

}  // namespace

Result<Compiled> compile_training(const LlamaConfig& model, const CompileOptions& options) {
  const ForwardOptions forward{options.micro_batch_size, options.seq_len, true};
  return run_passes(kTrainingPasses, {model, options, forward});
}

Result<Compiled> compile_forward(const LlamaConfig& model, const ForwardOptions& forward,
                                 const CompileOptions& options) {
  return run_passes(kForwardPasses, {model, options, forward});
}

}  // namespace sgactor::graph
