#include "graph/passes/partition_prepare.h"

#include "graph/ir/op_table.h"
#include "graph/passes/rewrite.h"
#include "graph/plan/body_storage.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace sgactor::graph {
namespace {

bool is_copied_to_readers(const Graph& graph, ValueId v) {
  const Value& value = graph.value(v);
  if (value.producer == kNoOp) return false;
  const Op& op = graph.op(value.producer);
  return op.operands.empty() ||
         aliased_operand(op, value.result, AliasSpec::Kind::kView) != kNoValue;
}

/// Puts views and constants into each piece that reads them.
class Localizer {
 public:
  explicit Localizer(const Graph& graph) : graph_(graph), copier_(graph) {}

  Graph run() {
    for (OpId o = 0; o < graph_.ops().size(); ++o) {
      const Op& op = graph_.op(o);
      std::vector<ValueId> operands;
      for (ValueId v : op.operands) operands.push_back(local(v, op));
      const OpId copied = copier_.copy_as(o, std::move(operands), op.phase, op.segment);
      for (size_t r = 0; r < op.results.size(); ++r) {
        copier_.bind(op.results[r], copier_.graph().op(copied).results[r]);
      }
    }
    copier_.copy_outputs();
    return clean_graph(copier_.take(), false);
  }

 private:
  ValueId local(ValueId v, const Op& reader) {
    const OpId producer = graph_.value(v).producer;
    if (!is_copied_to_readers(graph_, v) || piece_of(graph_.op(producer)) == piece_of(reader)) {
      return copier_[v];
    }
    const auto known = copies_.find({piece_of(reader), v});
    if (known != copies_.end()) return known->second;
    const Op& op = graph_.op(producer);
    std::vector<ValueId> operands;
    for (ValueId operand : op.operands) operands.push_back(local(operand, reader));
    const OpId copied =
        copier_.copy_as(producer, std::move(operands), reader.phase, reader.segment);
    for (size_t r = 0; r < op.results.size(); ++r) {
      copies_[{piece_of(reader), op.results[r]}] = copier_.graph().op(copied).results[r];
    }
    return copies_[{piece_of(reader), v}];
  }

  const Graph& graph_;
  GraphCopier copier_;
  std::map<std::pair<PieceKey, ValueId>, ValueId> copies_;
};

/// A copy of `v` in the piece of `home`, which reads `v` as `read`. Times one is exact for floats;
/// a cast may round where a backend computes wider than the type.
ValueId copy_value(Graph& graph, ValueId read, const TensorType& type, const Op& home) {
  const bool number = is_float(type.dtype);
  Attrs attrs;
  if (number) {
    attrs.set("factor", 1.0);
  } else {
    attrs.set("dtype", type.dtype);
  }
  const OpId copied = graph.add_op(number ? OpKind::kScale : OpKind::kCast, {read}, attrs, {type},
                                   home.phase, home.segment);
  return graph.op(copied).results[0];
}

/// Fusion may update in place what communication then cuts off: a copy of it is updated instead.
Graph copy_what_others_made(const Graph& graph) {
  const auto handed_over = find_handed_over(graph);
  GraphCopier copier(graph);
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(copier[v]);
    for (uint32_t r = 0; r < op.results.size(); ++r) {
      const ValueId updated = aliased_operand(op, r, AliasSpec::Kind::kMust);
      if (updated == kNoValue) continue;
      const OpId maker = graph.value(view_root(graph, updated)).producer;
      if (maker == kNoOp || piece_of(graph.op(maker)) == piece_of(op)) continue;
      if (handed_over.contains(updated)) continue;
      const ValueId copy = copy_value(copier.graph(), copier[updated], graph.type(updated), op);
      std::replace(operands.begin(), operands.end(), copier[updated], copy);
    }
    const OpId copied = copier.copy_as(o, std::move(operands), op.phase, op.segment);
    for (size_t r = 0; r < op.results.size(); ++r) {
      copier.bind(op.results[r], copier.graph().op(copied).results[r]);
    }
  }
  copier.copy_outputs();
  return copier.take();
}

/// What the rules about storage need to know of a graph.
class StorageView {
 public:
  explicit StorageView(const Graph& graph)
      : graph_(graph), view_(graph), root_(graph.values().size()), groups_(graph.values().size()) {
    for (ValueId v = 0; v < graph.values().size(); ++v) {
      root_[v] = storage_root(graph, v);
      groups_[view_root(graph, v)].push_back(v);
    }
  }

  /// Owner of the bytes, through views and in-place updates.
  [[nodiscard]] ValueId root(ValueId v) const { return root_[v]; }
  [[nodiscard]] bool is_input(ValueId v) const { return graph_.value(v).producer == kNoOp; }
  /// Ops that read `v` or a view of it.
  [[nodiscard]] std::vector<OpId> readers(ValueId v) const {
    std::vector<OpId> found;
    for (ValueId member : groups_[view_root(graph_, v)]) {
      const auto users = view_.users(member);
      found.insert(found.end(), users.begin(), users.end());
    }
    return found;
  }
  [[nodiscard]] bool crosses(ValueId v) const {
    if (is_input(v)) return false;
    const PieceKey home = piece_of(graph_.op(graph_.value(v).producer));
    const auto users = view_.users(v);
    return std::any_of(users.begin(), users.end(),
                       [&](OpId o) { return piece_of(graph_.op(o)) != home; });
  }

 private:
  const Graph& graph_;
  GraphView view_;
  std::vector<ValueId> root_;
  std::vector<std::vector<ValueId>> groups_;  // by view root
};

std::string describe(const Graph& graph, OpId o) {
  return fmt::format("op {} {}", o, op_info(graph.op(o).kind).name);
}

Status check_piece_order(const Graph& graph) {
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    for (ValueId v : graph.op(o).operands) {
      const OpId producer = graph.value(v).producer;
      if (producer == kNoOp || piece_of(graph.op(producer)) <= piece_of(graph.op(o))) continue;
      return invalid_plan(fmt::format("{} reads what {} makes in a later subgraph",
                                      describe(graph, o), describe(graph, producer)));
    }
  }
  return {};
}

/// Piece `home` is about to overwrite `v`: nobody may want the old value afterwards.
Status check_overwrite(const Graph& graph, const StorageView& storage, ValueId v, PieceKey home) {
  for (OpId o : storage.readers(v)) {
    const PieceKey reader = piece_of(graph.op(o));
    // Forward and backward pieces run again for the next micro-batch.
    const bool earlier = reader < home && !fires_per_micro_batch(home.phase);
    if (reader == home || earlier) continue;
    return invalid_plan(
        fmt::format("{} reads an input that another subgraph updates", describe(graph, o)));
  }
  return {};
}

Status check_in_place(const Graph& graph, const StorageView& storage) {
  const auto handed_over = find_handed_over(graph);
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    for (uint32_t r = 0; r < op.results.size(); ++r) {
      const ValueId operand = aliased_operand(op, r, AliasSpec::Kind::kMust);
      if (operand == kNoValue) continue;
      const ValueId owner = view_root(graph, operand);
      if (!storage.is_input(owner) && !handed_over.contains(operand) &&
          piece_of(graph.op(graph.value(owner).producer)) != piece_of(op)) {
        return invalid_plan(describe(graph, o) + " updates in place what another subgraph made");
      }
      SGA_TRY(check_overwrite(graph, storage, operand, piece_of(op)));
    }
  }
  return {};
}

class OutputFixer {
 public:
  OutputFixer(const Graph& graph, const StorageView& storage)
      : graph_(graph), storage_(storage), inputs_(graph) {
    const auto handed_over = find_handed_over(graph);
    for (ValueId v = 0; v < graph.values().size(); ++v) {
      if (storage.crosses(v) && !handed_over.contains(v)) crossing_[storage.root(v)].insert(v);
    }
  }

  Result<Graph> run();

 private:
  enum class Action { kKeep, kDrop, kCopy };

  Result<Action> decide(const GraphOutput& output);
  /// Can the op that makes `root` write over the bytes of input `state`?
  [[nodiscard]] bool can_take_bytes(ValueId root, ValueId state) const;
  ValueId add_copy(GraphCopier& copier, ValueId v, const Op& home) const;
  static ValueId view_as(GraphCopier& copier, ValueId v, const TensorType& type, const Op& home);

  const Graph& graph_;
  const StorageView& storage_;
  InputIndex inputs_;
  std::map<ValueId, std::set<ValueId>> crossing_;  // by storage root: values that cross
  std::set<ValueId> claimed_;                      // storage roots that are an output already
};

bool OutputFixer::can_take_bytes(ValueId root, ValueId state) const {
  const OpId writer = graph_.value(root).producer;
  const Op& op = graph_.op(writer);
  for (OpId reader : storage_.readers(state)) {
    if (piece_of(graph_.op(reader)) != piece_of(op)) continue;  // checked by check_overwrite
    if (reader > writer) return false;
    if (reader < writer) continue;
    bool allowed = false;
    for (const AliasSpec& alias : op_info(op.kind).aliases) {
      allowed =
          allowed || (alias.kind == AliasSpec::Kind::kMay &&
                      op.results[static_cast<size_t>(alias.result)] == root &&
                      view_root(graph_, op.operands[static_cast<size_t>(alias.operand)]) == state);
    }
    for (ValueId v : op.operands) {
      allowed = allowed && (view_root(graph_, v) != state ||
                            graph_.type(v).num_elements() == graph_.type(root).num_elements());
    }
    if (!allowed) return false;
  }
  return true;
}

Result<OutputFixer::Action> OutputFixer::decide(const GraphOutput& output) {
  const ValueId state = inputs_.find(output.role, output.name);
  const ValueId root = storage_.root(output.value);
  const auto error = [&](std::string_view rule) {
    return invalid_plan(
        fmt::format("output {} \"{}\" {}", to_string(output.role), output.name, rule));
  };
  if (state != kNoValue && graph_.type(state) != graph_.type(output.value)) {
    return error("has another type than the input of this name");
  }
  const auto crossing = crossing_.find(root);
  const bool crosses = crossing != crossing_.end();
  if (storage_.is_input(root)) {
    const bool unchanged = view_root(graph_, output.value) == root;
    if (root == state && unchanged) return Action::kDrop;
    if (unchanged && state != kNoValue) return error("is another input");
    if (unchanged) return Action::kCopy;
    if (root != state) return error("updates an input of another name in place");
    if (crosses) return error("is updated in place and read by another subgraph");
    return claimed_.insert(root).second ? Action::kKeep : Action::kCopy;
  }
  if (state != kNoValue) {
    const PieceKey home = piece_of(graph_.op(graph_.value(root).producer));
    SGA_TRY(check_overwrite(graph_, storage_, state, home)
                .with_context(std::string(to_string(output.role)) + " \"" + output.name + "\""));
    // A new state goes to the next step; what others read in this one is a value of its own.
    if (crosses || !can_take_bytes(root, state)) return Action::kCopy;
  }
  const bool crosses_elsewhere = crosses && *crossing->second.begin() != output.value;
  if (crosses_elsewhere || !claimed_.insert(root).second) return Action::kCopy;
  return Action::kKeep;
}

ValueId OutputFixer::add_copy(GraphCopier& copier, ValueId v, const Op& home) const {
  return copy_value(copier.graph(), copier[v], graph_.type(v), home);
}

ValueId OutputFixer::view_as(GraphCopier& copier, ValueId v, const TensorType& type,
                             const Op& home) {
  Graph& graph = copier.graph();
  if (graph.type(v) == type) return v;
  Attrs attrs;
  attrs.set("shape", type.shape.dims());
  const OpId viewed = graph.add_op(OpKind::kReshape, {v}, attrs, {type}, home.phase, home.segment);
  return graph.op(viewed).results[0];
}

Result<Graph> OutputFixer::run() {
  GraphCopier copier(graph_);
  std::vector<Action> actions;
  std::vector<ValueId> values(graph_.outputs().size(), kNoValue);
  const auto first =
      std::min_element(graph_.ops().begin(), graph_.ops().end(),
                       [](const Op& a, const Op& b) { return piece_of(a) < piece_of(b); });
  for (size_t j = 0; j < graph_.outputs().size(); ++j) {
    const ValueId v = graph_.outputs()[j].value;
    SGA_ASSIGN(const Action action, decide(graph_.outputs()[j]));
    actions.push_back(action);
    if (action != Action::kCopy || !storage_.is_input(storage_.root(v))) continue;
    // Inputs are copied before anything can overwrite them. `v` may be a view: copy the owner,
    // which has the same bytes, and view the copy.
    if (first == graph_.ops().end()) return invalid_plan("the graph has outputs and no ops");
    values[j] = add_copy(copier, storage_.root(v), *first);
  }
  for (OpId o = 0; o < graph_.ops().size(); ++o) copier.copy(o);
  for (size_t j = 0; j < graph_.outputs().size(); ++j) {
    const GraphOutput& output = graph_.outputs()[j];
    if (actions[j] == Action::kDrop) continue;
    ValueId value = values[j];
    if (value != kNoValue) {
      value = view_as(copier, value, graph_.type(output.value), *first);
    } else if (actions[j] == Action::kCopy) {
      value = add_copy(copier, output.value, graph_.op(graph_.value(output.value).producer));
    } else {
      value = copier[output.value];
    }
    copier.graph().add_output(value, output.role, output.name);
  }
  return clean_graph(copier.take(), false);
}

}  // namespace

PieceKey piece_of(const Op& op) {
  return {op.phase, op.phase == Phase::kBackward ? -op.segment : op.segment};
}

std::map<ValueId, const GraphOutput*> find_handed_over(const Graph& graph) {
  const std::vector<int32_t> uses = graph.use_counts();
  const InputIndex inputs(graph);
  std::vector<bool> is_output(graph.values().size(), false);
  for (const GraphOutput& output : graph.outputs()) is_output[output.value] = true;
  std::map<ValueId, const GraphOutput*> found;
  for (const GraphOutput& output : graph.outputs()) {
    const Value& value = graph.value(output.value);
    if (output.role != Role::kAccumulator || value.producer == kNoOp) continue;
    if (inputs.find(output.role, output.name) != kNoValue) continue;
    const Op& op = graph.op(value.producer);
    const ValueId updated = aliased_operand(op, value.result, AliasSpec::Kind::kMust);
    if (updated == kNoValue || is_output[updated] || uses[updated] != 1) continue;
    const OpId maker = graph.value(updated).producer;
    // A view has its bytes from elsewhere, a constant stands in each piece that reads it, and
    // communication writes where it likes.
    if (maker == kNoOp || is_copied_to_readers(graph, updated)) continue;
    if (op_info(graph.op(maker).kind).communicates) continue;
    const PieceKey from = piece_of(graph.op(maker));
    const bool once = fires_per_micro_batch(from.phase) && fires_per_micro_batch(op.phase);
    if (once && from < piece_of(op)) found.emplace(updated, &output);
  }
  return found;
}

Result<Graph> prepare_pieces(const Graph& graph) {
  const Graph localized = copy_what_others_made(Localizer(graph).run());
  SGA_TRY(check_piece_order(localized));
  const StorageView storage(localized);
  SGA_TRY(check_in_place(localized, storage));
  return OutputFixer(localized, storage).run();
}

InputIndex::InputIndex(const Graph& graph) {
  for (const GraphInput& input : graph.inputs()) {
    values_.emplace(std::pair(input.role, input.name), input.value);
  }
}

ValueId InputIndex::find(Role role, const std::string& name) const {
  const auto found = values_.find({role, name});
  return found == values_.end() ? kNoValue : found->second;
}

int32_t updated_input(const Graph& graph, const InputIndex& inputs, const GraphOutput& output) {
  const ValueId root = storage_root(graph, output.value);
  if (graph.value(root).producer == kNoOp) return static_cast<int32_t>(graph.value(root).result);
  if (output.role == Role::kActivation) return -1;
  const ValueId state = inputs.find(output.role, output.name);
  return state == kNoValue ? -1 : static_cast<int32_t>(graph.value(state).result);
}

}  // namespace sgactor::graph
