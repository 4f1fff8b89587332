#include "graph/passes/infer_precision.h"

#include "graph/ir/op_table.h"
#include "graph/passes/partition_prepare.h"
#include "graph/passes/rewrite.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace sgactor::graph {
namespace {

constexpr std::string_view kOncePerStep = "runs once a step: sums, norms and updates are f32";
constexpr std::string_view kNotF32 = "its operands are not f32";

bool in_mask(uint32_t mask, size_t operand) { return operand < 32 && (mask >> operand & 1U) != 0; }

Attrs dtype_attr(DType dtype) {
  Attrs attrs;
  attrs.set("dtype", dtype);
  return attrs;
}

class Inference {
 public:
  Inference(const Graph& graph, DType narrow, const PrecisionOptions& options)
      : graph_(graph),
        copier_(graph),
        narrow_(narrow),
        options_(options),
        narrowed_(graph.values().size(), false) {
    report_.narrow = narrow;
    for (const Value& value : graph.values()) dtype_.push_back(value.type.dtype);
  }

  Status decide();
  Result<Graph> build();
  [[nodiscard]] PrecisionReport take_report() { return std::move(report_); }

 private:
  enum class Need : uint8_t { kModel, kNarrow, kAny };

  [[nodiscard]] const Op& producer(ValueId v) const { return graph_.op(graph_.value(v).producer); }
  [[nodiscard]] bool is_input(ValueId v) const { return graph_.value(v).producer == kNoOp; }
  [[nodiscard]] bool is_parameter(ValueId v) const {
    return is_input(v) && graph_.inputs()[graph_.value(v).result].role == Role::kParameter;
  }
  [[nodiscard]] bool is_made_as_needed(ValueId v) const {
    return !is_input(v) && producer(v).kind == OpKind::kConstant;
  }
  PrecisionDecision decide_op(OpId o) const;
  /// Dtype in which op `o`, decided, reads operand i.
  [[nodiscard]] DType wanted(OpId o, size_t i) const;
  [[nodiscard]] Attrs decided_attrs(OpId o) const;
  ValueId operand_as(ValueId v, DType dtype, const Op& reader);
  ValueId add_cast(ValueId v, DType dtype, Phase phase, int32_t segment);
  Status build_op(OpId o);

  const Graph& graph_;
  GraphCopier copier_;
  const DType narrow_;
  const PrecisionOptions options_;
  std::vector<DType> dtype_;    // by value: what it will have
  std::vector<bool> narrowed_;  // by value: a narrow copy is made where it is made
  PrecisionReport report_;
  std::map<std::tuple<ValueId, DType, PieceKey>, ValueId> casts_;
  std::vector<ValueId> narrow_copies_;  // by value
};

PrecisionDecision Inference::decide_op(OpId o) const {
  const Op& op = graph_.op(o);
  const PrecisionRow& row = precision_rule(op.kind);
  PrecisionDecision d{o, op.kind, op.phase, false, row.reason};
  if (!fires_per_micro_batch(op.phase)) {
    d.reason = kOncePerStep;
    return d;
  }
  bool all_f32 = true;
  bool one_is_narrow = false;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const DType model = graph_.type(op.operands[i]).dtype;
    if (!is_float(model) || in_mask(row.model | row.any, i)) continue;
    all_f32 = all_f32 && (model == DType::kF32);
    one_is_narrow = one_is_narrow || dtype_[op.operands[i]] == narrow_;
  }
  if (const Attr* attr = op.attrs.find("dtype"); op.operands.empty() && attr != nullptr) {
    all_f32 = std::get<DType>(*attr) == DType::kF32;
  }
  d.narrow =
      row.rule == PrecisionRule::kNarrow || (row.rule == PrecisionRule::kFollow && one_is_narrow);
  if (d.narrow && !all_f32) {
    d.narrow = false;
    d.reason = kNotF32;
  }
  return d;
}

DType Inference::wanted(OpId o, size_t i) const {
  const Op& op = graph_.op(o);
  const ValueId v = op.operands[i];
  const DType model = graph_.type(v).dtype;
  const PrecisionRow& row = precision_rule(op.kind);
  if (in_mask(row.any, i) && fires_per_micro_batch(op.phase)) return dtype_[v];
  const bool narrow = report_.decisions[o].narrow && is_float(model) && !in_mask(row.model, i);
  return narrow ? narrow_ : model;
}

Attrs Inference::decided_attrs(OpId o) const {
  Attrs attrs = graph_.op(o).attrs;
  // A table without operands has its dtype as an attribute.
  if (report_.decisions[o].narrow && graph_.op(o).operands.empty()) attrs.set("dtype", narrow_);
  return attrs;
}

Status Inference::decide() {
  for (OpId o = 0; o < graph_.ops().size(); ++o) {
    const Op& op = graph_.op(o);
    report_.decisions.push_back(decide_op(o));
    std::vector<TensorType> types;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId v = op.operands[i];
      const DType dtype = wanted(o, i);
      types.push_back({dtype, graph_.type(v).shape});
      if (dtype == narrow_ && dtype_[v] != narrow_ && !is_input(v) && !is_made_as_needed(v)) {
        narrowed_[v] = true;
      }
    }
    SGA_ASSIGN(const std::vector<TensorType> results,
               infer_types(op.kind, types, decided_attrs(o)));
    for (size_t r = 0; r < op.results.size(); ++r) dtype_[op.results[r]] = results[r].dtype;
  }
  return {};
}

ValueId Inference::add_cast(ValueId v, DType dtype, Phase phase, int32_t segment) {
  ++(is_input(v) ? report_.num_parameter_casts : report_.num_other_casts);
  Graph& graph = copier_.graph();
  const ValueId from = copier_[v];
  const OpId cast = graph.add_op(OpKind::kCast, {from}, dtype_attr(dtype),
                                 {{dtype, graph.type(from).shape}}, phase, segment);
  return graph.op(cast).results[0];
}

ValueId Inference::operand_as(ValueId v, DType dtype, const Op& reader) {
  if (dtype_[v] == dtype) return copier_[v];
  if (narrowed_[v] && dtype == narrow_) return narrow_copies_[v];
  // A shard is cast once a step, so that no gather of it waits for a launch beside its reader.
  const bool gathered = reader.kind == OpKind::kAllGather && is_input(v);
  const Phase phase = gathered ? Phase::kPrepare : reader.phase;
  const bool kept = options_.keep_casts && is_parameter(v) && fires_per_micro_batch(reader.phase);
  const PieceKey piece = gathered ? PieceKey{Phase::kPrepare, 0}
                         : kept   ? PieceKey{Phase::kForward, -1}
                                  : piece_of(reader);
  const auto [cast, is_new] = casts_.try_emplace({v, dtype, piece}, kNoValue);
  if (!is_new) return cast->second;
  if (is_made_as_needed(v)) {
    Attrs attrs = producer(v).attrs;
    attrs.set("dtype", dtype);
    Graph& graph = copier_.graph();
    const OpId made = graph.add_op(OpKind::kConstant, {}, std::move(attrs),
                                   {{dtype, graph_.type(v).shape}}, reader.phase, reader.segment);
    cast->second = graph.op(made).results[0];
  } else {
    cast->second = add_cast(v, dtype, phase, reader.segment);
  }
  return cast->second;
}

Status Inference::build_op(OpId o) {
  const Op& op = graph_.op(o);
  std::vector<ValueId> operands;
  std::vector<TensorType> types;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    operands.push_back(operand_as(op.operands[i], wanted(o, i), op));
  }
  for (ValueId v : op.results) types.push_back({dtype_[v], graph_.type(v).shape});
  Graph& graph = copier_.graph();
  const OpId copied =
      graph.add_op(op.kind, std::move(operands), decided_attrs(o), types, op.phase, op.segment);
  for (size_t r = 0; r < op.results.size(); ++r) {
    const ValueId v = op.results[r];
    copier_.bind(v, graph.op(copied).results[r]);
    if (narrowed_[v]) narrow_copies_[v] = add_cast(v, narrow_, op.phase, op.segment);
  }
  return {};
}

Result<Graph> Inference::build() {
  narrow_copies_.assign(graph_.values().size(), kNoValue);
  for (OpId o = 0; o < graph_.ops().size(); ++o) SGA_TRY(build_op(o));
  for (const GraphOutput& output : graph_.outputs()) {
    const ValueId v = output.value;
    // Inputs never change, so the cast has a producer to stand beside.
    const DType model = graph_.type(v).dtype;
    const ValueId value = dtype_[v] == model ? copier_[v] : operand_as(v, model, producer(v));
    copier_.graph().add_output(value, output.role, output.name);
  }
  return clean_graph(copier_.take(), false);
}

}  // namespace

Result<Graph> infer_precision(const Graph& graph, DType narrow, PrecisionReport* report,
                              const PrecisionOptions& options) {
  if (narrow == DType::kF32) {
    if (report != nullptr) *report = {};
    return graph;
  }
  if (narrow != DType::kBF16) {
    return unsupported(fmt::format("precision {}: expected f32 or bf16", dtype_name(narrow)));
  }
  Inference inference(graph, narrow, options);
  SGA_TRY(inference.decide());
  SGA_ASSIGN(Graph result, inference.build());
  if (report != nullptr) *report = inference.take_report();
  return result;
}

std::vector<std::string> explain_precision(const PrecisionReport& report) {
  std::map<std::tuple<OpKind, bool, std::string_view>, int> counts;
  for (const PrecisionDecision& d : report.decisions) ++counts[{d.kind, !d.narrow, d.reason}];
  std::vector<std::string> lines;
  for (const auto& [key, count] : counts) {
    const auto& [kind, wide, reason] = key;
    lines.push_back(fmt::format(
        "{}: {} {}: {}", op_info(kind).name, count,
        wide ? "as the model says" : fmt::format("in {}", dtype_name(report.narrow)), reason));
  }
  return lines;
}

}  // namespace sgactor::graph
