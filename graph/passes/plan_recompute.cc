#include "graph/passes/plan_recompute.h"

#include "graph/base/units.h"
#include "graph/ir/op_table.h"
#include "graph/passes/plan_recompute_choose.h"
#include "graph/passes/rewrite.h"
#include "graph/plan/body_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace sgactor::graph {
namespace {

constexpr std::array<std::string_view, 3> kModeNames = {"none", "selective", "full"};

bool is_view(const Op& op) { return aliased_operand(op, 0, AliasSpec::Kind::kView) != kNoValue; }

/// Costs nothing, and is in each piece that reads it anyway (partition_subgraphs).
bool is_free(const Op& op) { return op.operands.empty() || is_view(op); }

/// Updates an operand in place, so that the operand's bytes are gone when the backward pass runs;
/// or communicates.
bool is_fixed(const Op& op) {
  if (op_info(op.kind).communicates) return true;
  for (const AliasSpec& alias : op_info(op.kind).aliases) {
    if (alias.kind == AliasSpec::Kind::kMust) return true;
  }
  return false;
}

/// For each result of a forward gather of graph inputs (parameters whose shards are gathered where
/// they are used): the value that a backward gather of the same segment makes of the same input, or
/// kNoValue. Clones read that one, so that no gathered parameter outlives the forward pass.
std::vector<ValueId> find_gather_twins(const Graph& graph) {
  std::map<std::pair<int32_t, ValueId>, ValueId> backward;  // by segment and gathered input
  const auto for_each_gathered = [&](Phase phase, auto&& f) {
    for (const Op& op : graph.ops()) {
      if (op.kind != OpKind::kAllGather || op.phase != phase) continue;
      for (size_t i = 0; i < op.operands.size(); ++i) {
        if (graph.value(view_root(graph, op.operands[i])).producer == kNoOp)
          f(std::pair(op.segment, view_root(graph, op.operands[i])), op.results[i]);
      }
    }
  };
  for_each_gathered(Phase::kBackward, [&](auto key, ValueId v) { backward.emplace(key, v); });
  std::vector<ValueId> twins(graph.values().size(), kNoValue);
  for_each_gathered(Phase::kForward, [&](auto key, ValueId v) {
    const auto twin = backward.find(key);
    if (twin != backward.end() && graph.type(twin->second) == graph.type(v))
      twins[v] = twin->second;
  });
  return twins;
}

/// The forward ops of one segment and what the decision needs to know of them.
struct Segment {
  std::vector<OpId> ops;
  RecomputeProblem problem;
  const std::vector<RecomputeChoice>* choices = nullptr;
};

class Planner {
 public:
  explicit Planner(const Graph& graph)
      : graph_(graph),
        view_(graph),
        boundary_(graph.values().size(), false),
        twins_(find_gather_twins(graph)),
        segments_(std::max<size_t>(1, graph.segments().size())) {
    find_boundaries();
    for (OpId o = 0; o < graph.ops().size(); ++o) {
      const Op& op = graph.op(o);
      if (op.phase == Phase::kForward) segments_[static_cast<size_t>(op.segment)].ops.push_back(o);
    }
    for (Segment& segment : segments_) describe(segment);
  }

  /// Ops to compute again: everything, or by choice.
  [[nodiscard]] std::vector<bool> everything() const;
  [[nodiscard]] std::vector<bool> cheap();
  /// Ways to decide the whole graph, by rising flops.
  const std::vector<RecomputeCombination>& combinations();
  [[nodiscard]] std::vector<bool> apply(const RecomputeCombination& combination) const;

  [[nodiscard]] Graph rewrite(const std::vector<bool>& again) const;
  [[nodiscard]] RecomputeReport report(const std::vector<bool>& again) const;

 private:
  void find_boundaries();
  void describe(Segment& segment) const;
  [[nodiscard]] RecomputeOp describe_op(OpId o) const;
  void find_choices();
  static void mark(const Segment& segment, const RecomputeChoice& choice, std::vector<bool>& again);
  [[nodiscard]] bool is_backward(OpId o) const { return graph_.op(o).phase == Phase::kBackward; }
  [[nodiscard]] int64_t saved_bytes(const Graph& graph) const;

  const Graph& graph_;
  GraphView view_;
  std::vector<bool> boundary_;  // forward values that are kept whatever is decided
  std::vector<ValueId> twins_;  // of forward values: what the backward pass has of its own
  std::vector<Segment> segments_;
  std::vector<std::pair<RecomputeProblem, std::vector<RecomputeChoice>>> known_;
  std::vector<RecomputeCombination> combinations_;
};

/// A value that another segment reads, or that is an output, and the owner of its bytes.
void Planner::find_boundaries() {
  for (OpId o = static_cast<OpId>(graph_.ops().size()); o-- > 0;) {
    const Op& op = graph_.op(o);
    if (op.phase != Phase::kForward) continue;
    for (ValueId v : op.results) {
      const auto users = view_.users(v);
      const bool crosses = std::any_of(users.begin(), users.end(), [&](OpId user) {
        return graph_.op(user).segment != op.segment;
      });
      if (crosses || view_.is_output(v)) boundary_[v] = true;
    }
    if (is_view(op) && boundary_[op.results[0]]) boundary_[op.operands[0]] = true;
  }
}

RecomputeOp Planner::describe_op(OpId o) const {
  const Op& op = graph_.op(o);
  RecomputeOp d;
  const bool has_twins = std::all_of(op.results.begin(), op.results.end(),
                                     [&](ValueId v) { return twins_[v] != kNoValue; });
  d.fixed = is_fixed(op) && !has_twins;
  d.free = is_free(op) || has_twins;
  // Moving bytes is no free work either: a byte counts as one operation.
  d.flops = op_flops(graph_, op) + static_cast<double>(op_bytes(graph_, op));
  for (ValueId v : op.results) {
    if (boundary_[v]) continue;
    const auto users = view_.users(v);
    d.needed = d.needed || std::any_of(users.begin(), users.end(),
                                       [&](OpId user) { return is_backward(user); });
    if (!users.empty()) d.bytes += graph_.type(v).bytes();
  }
  return d;
}

void Planner::describe(Segment& segment) const {
  std::map<OpId, int32_t> index;
  for (OpId o : segment.ops) {
    index[o] = static_cast<int32_t>(segment.problem.size());
    RecomputeOp d = describe_op(o);
    for (ValueId v : graph_.op(o).operands) {
      const OpId producer = graph_.value(v).producer;
      if (producer == kNoOp || boundary_[v]) continue;
      // A producer in another segment would have made `v` a boundary.
      const auto known = index.find(producer);
      if (known != index.end()) d.operands.push_back(known->second);
    }
    segment.problem.push_back(std::move(d));
  }
}

void Planner::mark(const Segment& segment, const RecomputeChoice& choice,
                   std::vector<bool>& again) {
  for (size_t i = 0; i < segment.ops.size(); ++i) again[segment.ops[i]] = choice.again[i];
}

std::vector<bool> Planner::everything() const {
  std::vector<bool> again(graph_.ops().size(), false);
  for (const Segment& segment : segments_) {
    mark(segment, recompute_everything(segment.problem), again);
  }
  return again;
}

/// Identical layers share one search.
void Planner::find_choices() {
  if (!known_.empty()) return;
  known_.reserve(segments_.size());  // pointers into it stay
  for (Segment& segment : segments_) {
    const auto known = std::find_if(known_.begin(), known_.end(),
                                    [&](const auto& k) { return k.first == segment.problem; });
    if (known != known_.end()) {
      segment.choices = &known->second;
      continue;
    }
    known_.emplace_back(segment.problem, choose_recompute(segment.problem));
    segment.choices = &known_.back().second;
  }
}

std::vector<bool> Planner::cheap() {
  find_choices();
  std::vector<bool> again(graph_.ops().size(), false);
  for (const Segment& segment : segments_) {
    const auto cost = [](const RecomputeChoice& c) {
      return c.flops + kRecomputeFlopsPerByte * static_cast<double>(c.bytes);
    };
    const auto best = std::min_element(
        segment.choices->begin(), segment.choices->end(),
        [&](const RecomputeChoice& a, const RecomputeChoice& b) { return cost(a) < cost(b); });
    mark(segment, *best, again);
  }
  return again;
}

const std::vector<RecomputeCombination>& Planner::combinations() {
  if (!combinations_.empty()) return combinations_;
  find_choices();
  std::vector<const std::vector<RecomputeChoice>*> choices;
  for (const Segment& segment : segments_) choices.push_back(segment.choices);
  combinations_ = combine_choices(choices);
  return combinations_;
}

std::vector<bool> Planner::apply(const RecomputeCombination& combination) const {
  std::vector<bool> again(graph_.ops().size(), false);
  for (size_t s = 0; s < segments_.size(); ++s) {
    const auto option = static_cast<size_t>(combination.options[s]);
    mark(segments_[s], (*segments_[s].choices)[option], again);
  }
  return again;
}

/// Copies the graph; operands of backward ops that are to be computed again are cloned right in
/// front of the first reader, so that they live no longer than they must.
class Cloner {
 public:
  Cloner(const Graph& graph, const std::vector<bool>& boundary, const std::vector<ValueId>& twins,
         const std::vector<bool>& again)
      : graph_(graph),
        boundary_(boundary),
        twins_(twins),
        again_(again),
        copier_(graph),
        copied_(graph.ops().size(), false),
        clones_(graph.values().size(), kNoValue) {}

  Graph run() {
    for (OpId o = 0; o < graph_.ops().size(); ++o) {
      if (graph_.op(o).phase == Phase::kBackward) {
        copy_backward(o);
      } else {
        copier_.copy(o);
      }
    }
    copier_.copy_outputs();
    return clean_graph(copier_.take(), /*merge_equal=*/false);
  }

 private:
  void copy_backward(OpId o) {
    if (copied_[o]) return;
    copied_[o] = true;
    const Op& op = graph_.op(o);
    const OpId copied = copier_.copy_as(o, read_all(op), op.phase, op.segment);
    for (size_t r = 0; r < op.results.size(); ++r) {
      copier_.bind(op.results[r], copier_.graph().op(copied).results[r]);
    }
  }

  /// A value that the backward pass makes of graph inputs, where the clones need it earlier.
  ValueId hoist(ValueId v) {
    const OpId producer = graph_.value(v).producer;
    if (producer == kNoOp) return copier_[v];
    for (ValueId operand : graph_.op(producer).operands) hoist(operand);
    copy_backward(producer);
    return copier_[v];
  }

  std::vector<ValueId> read_all(const Op& reader) {
    std::vector<ValueId> operands;
    for (ValueId v : reader.operands) operands.push_back(read(v));
    return operands;
  }

  ValueId read(ValueId v) {
    const OpId producer = graph_.value(v).producer;
    if (producer == kNoOp || boundary_[v] || !again_[producer]) return copier_[v];
    if (twins_[v] != kNoValue) return hoist(twins_[v]);
    if (clones_[v] != kNoValue) return clones_[v];
    const Op& op = graph_.op(producer);
    const OpId clone = copier_.copy_as(producer, read_all(op), Phase::kBackward, op.segment);
    for (size_t r = 0; r < op.results.size(); ++r) {
      clones_[op.results[r]] = copier_.graph().op(clone).results[r];
    }
    return clones_[v];
  }

  const Graph& graph_;
  const std::vector<bool>& boundary_;
  const std::vector<ValueId>& twins_;
  const std::vector<bool>& again_;
  GraphCopier copier_;
  std::vector<bool> copied_;  // backward ops
  std::vector<ValueId> clones_;
};

Graph Planner::rewrite(const std::vector<bool>& again) const {
  return Cloner(graph_, boundary_, twins_, again).run();
}

/// Bytes that forward ops leave to backward ops; views count as what they view.
int64_t Planner::saved_bytes(const Graph& graph) const {
  std::vector<bool> saved(graph.values().size(), false);
  for (const Op& op : graph.ops()) {
    if (op.phase != Phase::kBackward) continue;
    for (ValueId v : op.operands) {
      const ValueId root = view_root(graph, v);
      const OpId producer = graph.value(root).producer;
      if (producer == kNoOp || graph.op(producer).phase != Phase::kForward) continue;
      if (!graph.op(producer).operands.empty()) saved[root] = true;
    }
  }
  int64_t bytes = 0;
  for (ValueId v = 0; v < graph.values().size(); ++v) {
    if (saved[v]) bytes += graph.type(v).bytes();
  }
  return bytes;
}

RecomputeReport Planner::report(const std::vector<bool>& again) const {
  RecomputeReport r;
  r.saved_before_bytes = saved_bytes(graph_);
  r.saved_after_bytes = saved_bytes(rewrite(again));
  for (OpId o = 0; o < graph_.ops().size(); ++o) {
    const Op& op = graph_.op(o);
    if (op.phase != Phase::kForward) continue;
    const double flops = op_flops(graph_, op);
    r.forward_flops += flops;
    if (!again[o] || is_free(op)) continue;
    r.recomputed_flops += flops;
    ++r.num_recomputed;
  }
  return r;
}

/// Rounded up, so that it does as a budget.
std::string at_least(int64_t bytes) {
  constexpr int64_t kKiB = 1024;
  constexpr int64_t kMiB = 1024 * kKiB;
  const bool small = bytes < 4 * kMiB;
  const int64_t unit = small ? kKiB : kMiB;
  return fmt::format("{} {}", (bytes + unit - 1) / unit, small ? "KiB" : "MiB");
}

Status budget_error(const RecomputeOptions& options, RecomputeMode least_mode,
                    const MemoryStats& least) {
  std::string parts = fmt::format(
      "{} of parameters, {} of moments, {} of accumulators, {} of activations and batches",
      format_bytes(least.parameter_bytes), format_bytes(least.moment_bytes),
      format_bytes(least.accumulator_bytes), format_bytes(least.activation_peak_bytes));
  if (options.scratch_bytes > 0) {
    parts +=
        fmt::format(", {} that the device keeps beside them", format_bytes(options.scratch_bytes));
  }
  return make_status(
      Code::kOutOfMemory,
      fmt::format("a memory budget of {} cannot be met; the least is {} with recompute \"{}\": {}",
                  format_bytes(options.memory_budget_bytes),
                  at_least(least.planned_bytes + options.scratch_bytes), to_string(least_mode),
                  parts));
}

bool fits(const MemoryStats& stats, const RecomputeOptions& options) {
  return stats.planned_bytes + options.scratch_bytes <= options.memory_budget_bytes;
}

/// Errors: as plan_recompute, for a choice that takes too much.
Status check_budget(Planner& planner, const RecomputeOptions& options, const MeasurePlan& measure,
                    const std::vector<bool>& again, RecomputeReport* report) {
  if (options.memory_budget_bytes <= 0) return {};
  SGA_ASSIGN(const MemoryStats own, measure(planner.rewrite(again)));
  if (fits(own, options)) return {};
  SGA_ASSIGN(const MemoryStats full, measure(planner.rewrite(planner.everything())));
  const bool own_is_least = own.planned_bytes < full.planned_bytes;
  const MemoryStats& least = own_is_least ? own : full;
  if (report != nullptr) report->least_bytes = least.planned_bytes;
  return budget_error(options, own_is_least ? options.mode : RecomputeMode::kFull, least);
}

/// The combination of least flops whose plan stays within the budget. Bytes fall as flops rise,
/// and the arena with them, so the first that fits is found by halving.
Result<std::vector<bool>> fit_budget(Planner& planner, const RecomputeOptions& options,
                                     const MeasurePlan& measure, RecomputeReport* report) {
  const auto& all = planner.combinations();
  size_t low = 0;
  size_t high = all.size();  // fits, or is the end
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    SGA_ASSIGN(const MemoryStats stats, measure(planner.rewrite(planner.apply(all[middle]))));
    if (fits(stats, options)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low < all.size()) return planner.apply(all[low]);
  std::vector<bool> again = planner.everything();
  const Status full = check_budget(planner, options, measure, again, report);
  if (full.ok()) return again;
  SGA_TRY(check_budget(planner, options, measure, planner.apply(all.back()), report));
  return full;
}

}  // namespace

std::string_view to_string(RecomputeMode mode) { return kModeNames.at(static_cast<size_t>(mode)); }

std::optional<RecomputeMode> parse_recompute_mode(std::string_view text) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (kModeNames[i] == text) return static_cast<RecomputeMode>(i);
  }
  return std::nullopt;
}

Result<Graph> plan_recompute(const Graph& training, const RecomputeOptions& options,
                             const MeasurePlan& measure, RecomputeReport* report) {
  Planner planner(training);
  std::vector<bool> again(training.ops().size(), false);
  if (options.mode == RecomputeMode::kSelective && options.memory_budget_bytes > 0) {
    SGA_ASSIGN(again, fit_budget(planner, options, measure, report));
  } else {
    if (options.mode == RecomputeMode::kFull) again = planner.everything();
    if (options.mode == RecomputeMode::kSelective) again = planner.cheap();
    SGA_TRY(check_budget(planner, options, measure, again, report));
  }
  RecomputeReport done = planner.report(again);
  // What crosses segments in the forward pass alone is kept once clones read it: that may outweigh
  // what they free.
  if (options.mode == RecomputeMode::kSelective &&
      done.saved_after_bytes > done.saved_before_bytes && options.memory_budget_bytes <= 0) {
    again.assign(training.ops().size(), false);
    done = planner.report(again);
  }
  if (report != nullptr) *report = done;
  if (options.mode == RecomputeMode::kNone) return training;
  return planner.rewrite(again);
}

}  // namespace sgactor::graph
