#include "graph/passes/infer_precision_f8.h"

#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/passes/partition_prepare.h"
#include "graph/passes/rewrite.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr std::array<F8Row, 3> kRules = {{
    {F8Role::kActivation, DType::kF8E4M3, "three bits of fraction; one scale brings it into range"},
    {F8Role::kWeight, DType::kF8E4M3, "three bits of fraction; the master stays f32"},
    {F8Role::kGradient, DType::kF8E5M2, "gradients spread wide: five bits of exponent"},
}};
constexpr std::string_view kHead = "in bf16: logits decide the loss, and the job keeps them";
constexpr std::string_view kUnfusedHead = "in bf16: logits decide the loss; a fused head rounds";
constexpr std::string_view kHeadReason =
    "logits are summed in f32, and their gradients, in [-1, 1], need no scale that lags";
constexpr std::string_view kNoWeight = "in bf16: no operand is a parameter's map";
constexpr std::string_view kGrain = "in bf16: a dim is no multiple of 16, the matrix unit's grain";
constexpr int64_t kGrainElements = 16;

/// A product that will read 8 bits.
struct Product {
  size_t first = 0;  ///< operand of the op that the product begins with
  std::array<F8Role, 2> roles = {F8Role::kActivation, F8Role::kActivation};
};

class Quantizer {
 public:
  Quantizer(const Graph& graph, const F8Options& options)
      : graph_(graph),
        options_(options),
        copier_(graph),
        builder_(copier_.graph()),
        products_(graph.ops().size()),
        round_behind_(graph.ops().size()) {}

  Result<Graph> run();
  [[nodiscard]] F8Report take_report() { return std::move(report_); }

 private:
  /// q and scale of an operand.
  struct Rounded {
    ValueId q = kNoValue, scale = kNoValue;
  };
  /// Of one scaled tensor.
  struct State {
    size_t tensor = 0;  ///< index into the report's
    ValueId amax = kNoValue, seen = kNoValue;
  };

  /// Name of the parameter that `v` is, or is cast, gathered or viewed from; empty for others.
  [[nodiscard]] std::string_view parameter(ValueId v) const;
  [[nodiscard]] bool fits(const Op& op, size_t first) const;
  void choose();
  void choose_head(OpId o);
  [[nodiscard]] std::optional<Product> choose_product(const Op& op, size_t first,
                                                      std::string_view* reason);
  void name_tensors();
  void choose_places();
  /// Name of the parameter whose gradient a product adds to; empty if it is none.
  [[nodiscard]] std::string_view weight_of_gradient(const Op& op) const;
  [[nodiscard]] std::string name_of(const Op& op, const Product& product, F8Role role);
  /// What an operand is rounded from.
  [[nodiscard]] ValueId source(ValueId v, F8Role role) const;
  Rounded rounded(const Op& op, const Product& product, size_t i);
  void build_product(OpId o);

  const Graph& graph_;
  const F8Options options_;
  GraphCopier copier_;
  Builder builder_;
  F8Report report_;
  std::vector<std::optional<Product>> products_;  // by op
  /// By op: operands, of later products of its piece, that are rounded as soon as it has made them.
  std::vector<std::vector<std::pair<OpId, size_t>>> round_behind_;
  std::set<ValueId> activations_;
  std::set<std::string_view> weights_;
  // By what it is rounded from; weights, which several pieces round, by name.
  std::map<std::pair<ValueId, std::string>, State> states_;
  std::map<std::pair<ValueId, PieceKey>, Rounded> rounded_;
  std::set<std::string> names_;
  std::vector<ValueId> seen_;  // by tensor: the accumulator's newest value
};

std::string_view Quantizer::parameter(ValueId v) const {
  while (graph_.value(v).producer != kNoOp) {
    const Op& op = graph_.op(graph_.value(v).producer);
    if (op.kind == OpKind::kAllGather) {
      v = op.operands[graph_.value(v).result];
    } else if (op.kind == OpKind::kCast || op.kind == OpKind::kReshape) {
      v = op.operands[0];
    } else {
      return {};
    }
  }
  const GraphInput& input = graph_.inputs()[graph_.value(v).result];
  return input.role == Role::kParameter ? std::string_view(input.name) : std::string_view();
}

bool Quantizer::fits(const Op& op, size_t first) const {
  for (size_t i = first; i < first + 2; ++i) {
    for (int64_t dim : graph_.type(op.operands[i]).shape.dims()) {
      if (dim % kGrainElements != 0 || dim == 0) return false;
    }
  }
  return true;
}

std::optional<Product> Quantizer::choose_product(const Op& op, size_t first,
                                                 std::string_view* reason) {
  const std::array<ValueId, 2> pair = {op.operands[first], op.operands[first + 1]};
  const bool forward = op.phase == Phase::kForward;
  *reason = kNoWeight;
  for (size_t i = 0; i < 2; ++i) {
    if (graph_.type(pair[i]).shape.rank() != 2) return std::nullopt;
    if (graph_.type(pair[i]).dtype != DType::kBF16) return std::nullopt;
  }
  Product product;
  product.first = first;
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view weight = parameter(pair[i]);
    const bool is_weight = !weight.empty() && (forward || weights_.contains(weight));
    const bool is_activation = !forward && activations_.contains(pair[i]);
    if (!is_weight && !is_activation) continue;
    if (!fits(op, first)) {
      *reason = kGrain;
      return std::nullopt;
    }
    product.roles[i] = is_weight ? F8Role::kWeight : F8Role::kActivation;
    product.roles[1 - i] = forward ? F8Role::kActivation : F8Role::kGradient;
    if (forward) {
      weights_.insert(weight);
      activations_.insert(pair[1 - i]);
    }
    return product;
  }
  return std::nullopt;
}

/// A fused head begins with a forward product of rows with a parameter.
void Quantizer::choose_head(OpId o) {
  std::string_view reason = kHead;
  if (options_.head) products_[o] = choose_product(graph_.op(o), 1, &reason);
  if (products_[o]) {
    ++report_.num_heads;
  } else {
    ++report_.left[reason];
  }
}

void Quantizer::choose() {
  std::set<int32_t> heads;  // segments that compute the loss
  for (const Op& op : graph_.ops()) {
    if (op.kind == OpKind::kCrossEntropy || op.kind == OpKind::kCrossEntropyMax ||
        op.kind == OpKind::kLinearCrossEntropy || op.kind == OpKind::kLinearCrossEntropyGrad) {
      heads.insert(op.segment);
    }
  }
  for (OpId o = 0; o < graph_.ops().size(); ++o) {
    const Op& op = graph_.op(o);
    if (op.kind == OpKind::kLinearCrossEntropyGrad) choose_head(o);
    if (op.kind == OpKind::kLinearCrossEntropy) ++report_.left[kHead];
    if (op.kind != OpKind::kMatmul && op.kind != OpKind::kMatmulAccumulate) continue;
    std::string_view reason = options_.head ? kUnfusedHead : kHead;
    if (!heads.contains(op.segment)) {
      products_[o] = choose_product(op, op.kind == OpKind::kMatmul ? 0 : 1, &reason);
    }
    if (products_[o]) {
      ++report_.num_products;
    } else {
      ++report_.left[reason];
    }
  }
}

/// An operand that another op of the piece makes is rounded right behind it: backends may then do
/// both at once.
void Quantizer::choose_places() {
  for (OpId o = 0; o < graph_.ops().size(); ++o) {
    if (!products_[o]) continue;
    const Op& op = graph_.op(o);
    for (size_t i = 0; i < 2; ++i) {
      const OpId maker = graph_.value(op.operands[products_[o]->first + i]).producer;
      if (products_[o]->roles[i] == F8Role::kWeight || maker == kNoOp) continue;
      if (piece_of(graph_.op(maker)) == piece_of(op)) round_behind_[maker].emplace_back(o, i);
    }
  }
}

std::string_view Quantizer::weight_of_gradient(const Op& op) const {
  std::string_view name;
  const Value& acc = graph_.value(op.operands[0]);
  if (acc.producer == kNoOp) {
    name = graph_.inputs()[acc.result].name;
  } else {
    // The sum starts from a constant: one micro-batch. The names are the same.
    for (const GraphOutput& output : graph_.outputs()) {
      if (output.value == op.results[0]) name = output.name;
    }
  }
  if (name.starts_with("grad/")) name.remove_prefix(5);
  return name;
}

std::string Quantizer::name_of(const Op& op, const Product& product, F8Role role) {
  std::string_view weight;
  for (size_t i = 0; i < 2; ++i) {
    if (product.roles[i] == F8Role::kWeight) weight = parameter(op.operands[product.first + i]);
  }
  if (weight.empty() && op.kind == OpKind::kMatmulAccumulate) weight = weight_of_gradient(op);
  const std::string_view prefix = role == F8Role::kActivation ? "x"
                                  : role == F8Role::kWeight   ? "w"
                                                              : "dy";
  const std::string base = fmt::format("{}/{}", prefix, weight);
  if (role == F8Role::kWeight) return base;
  std::string name = base;
  for (int n = 1; !names_.insert(name).second; ++n) name = fmt::format("{}#{}", base, n);
  return name;
}

ValueId Quantizer::source(ValueId v, F8Role role) const {
  // Rounding begins with bf16, so a master parameter need not be cast before.
  if (role != F8Role::kWeight || graph_.value(v).producer == kNoOp) return v;
  const Op& op = graph_.op(graph_.value(v).producer);
  const bool of_input = op.kind == OpKind::kCast &&
                        graph_.value(op.operands[0]).producer == kNoOp &&
                        graph_.type(op.operands[0]).dtype == DType::kF32;
  return of_input ? op.operands[0] : v;
}

/// Every scaled tensor with its inputs, in order of first use.
void Quantizer::name_tensors() {
  for (OpId o = 0; o < graph_.ops().size(); ++o) {
    if (!products_[o]) continue;
    const Op& op = graph_.op(o);
    const Product& product = *products_[o];
    const int32_t num_products = op.kind == OpKind::kLinearCrossEntropyGrad ? 2 : 1;
    for (size_t i = 0; i < 2; ++i) {
      const F8Role role = product.roles[i];
      const ValueId v = op.operands[product.first + i];
      const bool weight = role == F8Role::kWeight;
      const auto key =
          weight ? std::pair(kNoValue, std::string(parameter(v))) : std::pair(v, std::string());
      const auto [state, is_new] = states_.try_emplace(key);
      if (is_new) {
        state->second.tensor = report_.tensors.size();
        report_.tensors.push_back({name_of(op, product, role), segment_name(graph_, op), role, 0});
      }
      report_.tensors[state->second.tensor].num_products += num_products;
    }
  }
  Graph& graph = copier_.graph();
  seen_.assign(report_.tensors.size(), kNoValue);
  std::vector<State*> by_tensor(report_.tensors.size());
  for (auto& [key, state] : states_) by_tensor[state.tensor] = &state;
  const TensorType number{DType::kF32, Shape{}};
  for (State* state : by_tensor) {
    state->amax =
        graph.add_input(number, Role::kMoment, "amax/" + report_.tensors[state->tensor].name);
  }
  for (State* state : by_tensor) {
    state->seen =
        graph.add_input(number, Role::kAccumulator, "seen/" + report_.tensors[state->tensor].name);
  }
}

Quantizer::Rounded Quantizer::rounded(const Op& op, const Product& product, size_t i) {
  const F8Role role = product.roles[i];
  const ValueId v = op.operands[product.first + i];
  const bool weight = role == F8Role::kWeight;
  const ValueId from = source(v, role);
  const bool kept = options_.keep_weights && graph_.value(from).producer == kNoOp;
  const PieceKey piece = weight && !kept ? piece_of(op) : PieceKey{};
  const auto [known, is_new] = rounded_.try_emplace({from, piece});
  if (!is_new) return known->second;
  const State& state = states_.at(weight ? std::pair(kNoValue, std::string(parameter(v)))
                                         : std::pair(v, std::string()));
  Attrs attrs;
  attrs.set("dtype", kRules[static_cast<size_t>(role)].dtype);
  attrs.set("transposed", false);
  builder_.set_phase(op.phase);
  builder_.set_segment(op.segment);
  // A weight is the same in every piece: one of them looks at it.
  const bool observed = seen_[state.tensor] == kNoValue;
  std::vector<ValueId> operands = {copier_[from], state.amax};
  if (observed) operands.push_back(state.seen);
  const std::vector<ValueId> results = builder_.op(
      observed ? OpKind::kQuantizeF8Observed : OpKind::kQuantizeF8, std::move(operands), attrs);
  if (observed) seen_[state.tensor] = results[2];
  known->second = {results[0], results[1]};
  return known->second;
}

void Quantizer::build_product(OpId o) {
  const Op& op = graph_.op(o);
  const Product& product = *products_[o];
  const Rounded a = rounded(op, product, 0);
  const Rounded b = rounded(op, product, 1);
  builder_.set_phase(op.phase);
  builder_.set_segment(op.segment);
  if (op.kind == OpKind::kLinearCrossEntropyGrad) {
    const std::vector<ValueId> results =
        builder_.op(op.kind,
                    {copier_[op.operands[0]], a.q, b.q, copier_[op.operands[3]],
                     copier_[op.operands[4]], a.scale, b.scale},
                    op.attrs);
    for (size_t r = 0; r < op.results.size(); ++r) copier_.bind(op.results[r], results[r]);
    return;
  }
  std::vector<ValueId> operands = {a.q, b.q, a.scale, b.scale};
  const bool in_place = op.kind == OpKind::kMatmulAccumulate;
  if (in_place) operands.insert(operands.begin(), copier_[op.operands[0]]);
  if (!in_place && op.operands.size() > 2) operands.push_back(copier_[op.operands[2]]);
  Attrs attrs = op.attrs;
  if (!in_place) attrs.set("dtype", graph_.type(op.results[0]).dtype);
  copier_.bind(op.results[0],
               builder_.op1(in_place ? OpKind::kScaledMatmulAccumulate : OpKind::kScaledMatmul,
                            std::move(operands), std::move(attrs)));
}

Result<Graph> Quantizer::run() {
  choose();
  name_tensors();
  choose_places();
  for (OpId o = 0; o < graph_.ops().size(); ++o) {
    if (products_[o]) {
      build_product(o);
    } else {
      copier_.copy(o);
    }
    for (const auto& [product, i] : round_behind_[o]) {
      rounded(graph_.op(product), *products_[product], i);
    }
    SGA_TRY(builder_.status());
  }
  copier_.copy_outputs();
  for (size_t t = 0; t < seen_.size(); ++t) {
    builder_.output(seen_[t], Role::kAccumulator, "seen/" + report_.tensors[t].name);
  }
  SGA_TRY(builder_.status());
  return clean_graph(copier_.take(), false);
}

/// The largest over a group of ranks, of all tensors of a segment in one operation.
void reduce_over(Builder& b, const char* group, std::vector<ValueId>& values) {
  Attrs attrs;
  attrs.set("group", std::string(group));
  attrs.set("reduce", std::string("max"));
  values = b.op(OpKind::kAllReduce, values, attrs);
}

}  // namespace

std::string_view to_string(F8Role role) {
  constexpr std::array<std::string_view, 3> kNames = {"activations", "weights", "gradients"};
  return kNames[static_cast<size_t>(role)];
}

std::span<const F8Row> f8_rules() { return kRules; }

Result<Graph> infer_precision_f8(const Graph& graph, F8Report* report, const F8Options& options) {
  Quantizer quantizer(graph, options);
  SGA_ASSIGN(Graph result, quantizer.run());
  if (report != nullptr) *report = quantizer.take_report();
  return result;
}

std::vector<std::string> explain_f8(const F8Report& report) {
  std::vector<std::string> lines;
  for (const F8Row& row : kRules) {
    const auto count = std::count_if(report.tensors.begin(), report.tensors.end(),
                                     [&](const ScaledTensor& t) { return t.role == row.role; });
    lines.push_back(fmt::format("operands of matmuls, {}: {} in {}: {}", to_string(row.role), count,
                                dtype_name(row.dtype), row.reason));
  }
  if (report.num_heads > 0) {
    lines.push_back(fmt::format("head: {} in 8 bits: {}", report.num_heads, kHeadReason));
  }
  for (const auto& [reason, count] : report.left) {
    lines.push_back(fmt::format("matmul: {} {}", count, reason));
  }
  return lines;
}

Result<Graph> update_f8_scales(const Graph& update, std::span<const ScaledTensor> tensors,
                               int32_t dp, int32_t tp) {
  Graph graph = update;
  Builder b(graph);
  const TensorType number{DType::kF32, Shape{}};
  std::vector<ValueId> amax;
  std::vector<ValueId> seen;
  for (const ScaledTensor& t : tensors) {
    amax.push_back(b.input(number, Role::kMoment, "amax/" + t.name));
  }
  for (const ScaledTensor& t : tensors) {
    seen.push_back(b.input(number, Role::kAccumulator, "seen/" + t.name));
  }
  std::vector<std::string> segments;  // in order of tensors
  for (const ScaledTensor& t : tensors) {
    if (std::find(segments.begin(), segments.end(), t.segment) == segments.end()) {
      segments.push_back(t.segment);
    }
  }
  for (const std::string& segment : segments) {
    std::vector<size_t> members;
    std::vector<ValueId> values;
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].segment != segment) continue;
      members.push_back(t);
      values.push_back(seen[t]);
    }
    b.set_segment(segment);
    b.set_phase(Phase::kReduce);
    if (dp > 1) reduce_over(b, "dp", values);
    if (tp > 1) reduce_over(b, "tp", values);
    b.set_phase(Phase::kUpdate);
    for (size_t i = 0; i < members.size(); ++i) {
      const size_t t = members[i];
      amax[t] = b.op1(OpKind::kUpdateAmax, {amax[t], values[i]});
    }
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    b.output(amax[t], Role::kMoment, "amax/" + tensors[t].name);
  }
  SGA_TRY(b.status());
  return graph;
}

}  // namespace sgactor::graph
