#include "graph/compiler/pipeline.h"

#include "graph/base/units.h"
#include "graph/ir/serial.h"
#include "graph/ir/verify.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/infer_precision.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

namespace sgactor::graph {
namespace {

/// What the passes work on. A pass replaces what it changes and leaves a line in `note`.
struct Work {
  const LlamaConfig& model;
  const CompileOptions& options;
  ForwardOptions forward;
  Graph training;  ///< or the forward graph alone
  Graph update;
  bool has_plan = false;
  Compiled result;
  std::string note;
  std::vector<std::string> details = {};

  [[nodiscard]] int32_t num_ops() const {
    return static_cast<int32_t>(training.ops().size() + update.ops().size());
  }
};

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
  SGA_ASSIGN(w.training, accumulate_microbatches(w.training));
  w.note = "gradients and loss add up over micro-batches in place";
  return {};
}

Status run_build_update(Work& w) {
  SGA_ASSIGN(const std::vector<UpdateParameter> parameters,
             collect_update_parameters(w.training, llama_parameters(w.model)));
  SGA_ASSIGN(w.update, build_update(parameters, w.options.optimizer));
  w.note = fmt::format("norm, clipping, schedule and AdamW of {} tensors", parameters.size());
  return {};
}

/// The schema is that of the graphs before any rewrite, so that it does not depend on options of
/// the compiler.
Status run_note_schema(Work& w) {
  w.result.plan.schema_hash = schema_hash(w.training);
  w.result.plan.ops_before = w.num_ops();
  w.note = "the training graph's identity, before any rewrite";
  return {};
}

Status run_fuse_ops(Work& w) {
  for (Graph* graph : {&w.training, &w.update}) {
    if (graph->ops().empty()) continue;
    std::vector<FusionReport> report;
    SGA_ASSIGN(*graph, fuse_ops(*graph, &report));
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
  SGA_ASSIGN(w.training, infer_precision(w.training, w.options.precision, &report));
  const auto narrow = std::count_if(report.decisions.begin(), report.decisions.end(),
                                    [](const PrecisionDecision& d) { return d.narrow; });
  w.note = report.decisions.empty()
               ? "f32 throughout, as the job asks"
               : fmt::format("{} of {} ops in {}; casts: {} of parameters, {} of other values",
                             narrow, report.decisions.size(), dtype_name(report.narrow),
                             report.num_parameter_casts, report.num_other_casts);
  w.details = explain_precision(report);
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

Status run_plan_memory(Work& w) {
  SGA_TRY(plan_memory(w.result.plan));
  const MemoryStats& m = w.result.plan.memory;
  w.note =
      fmt::format("{} instead of {}", format_bytes(m.planned_bytes), format_bytes(m.naive_bytes));
  w.has_plan = true;
  return {};
}

// The lists. Order matters; each line says why it stands where it does.
constexpr Pass kTrainingPasses[] = {
    {"build_model", run_build_model},             // primitive ops only, one micro-batch
    {"differentiate", run_differentiate},         // needs primitives: fused ops have no gradient
    {"accumulate_microbatches", run_accumulate},  // needs the gradients
    {"build_update", run_build_update},           // needs to know the accumulators
    {"note_schema", run_note_schema},             // before the first rewrite
    {"fuse_ops", run_fuse_ops, true},             // before the cut: patterns lie within segments
    {"infer_precision", run_infer_precision},     // after fusion: patterns hold no casts
    {"partition_subgraphs", run_partition},       // the last pass that sees whole graphs
    {"plan_memory", run_plan_memory},             // needs the final order
};
constexpr Pass kForwardPasses[] = {
    {"build_model", run_build_model},
    {"note_schema", run_note_schema},
    {"fuse_ops", run_fuse_ops, true},
    {"infer_precision", run_infer_precision},
    {"partition_subgraphs", run_partition_forward},
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
  return run_passes(kTrainingPasses, {model, options, forward, {}, {}, false, {}, {}});
}

Result<Compiled> compile_forward(const LlamaConfig& model, const ForwardOptions& forward,
                                 const CompileOptions& options) {
  return run_passes(kForwardPasses, {model, options, forward, {}, {}, false, {}, {}});
}

}  // namespace sgactor::graph
