#include "graph/passes/pattern_rewriter.h"

#include "graph/ir/op_table.h"

#include <algorithm>
#include <queue>

namespace sgactor::graph {

GraphView::GraphView(const Graph& graph)
    : graph_(graph),
      first_(graph.values().size() + 1, 0),
      is_output_(graph.values().size(), false) {
  for (const Op& op : graph.ops()) {
    for (ValueId v : op.operands) ++first_[v + 1];
  }
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  list_.resize(first_.back());
  std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    for (ValueId v : graph.op(o).operands) list_[next[v]++] = o;
  }
  for (const GraphOutput& output : graph.outputs()) is_output_[output.value] = true;
}

std::span<const OpId> GraphView::users(ValueId v) const {
  return std::span<const OpId>(list_).subspan(first_[v], first_[v + 1] - first_[v]);
}

OpId GraphView::producer(ValueId v, OpKind kind) const {
  const OpId op = graph_.value(v).producer;
  return op != kNoOp && graph_.op(op).kind == kind ? op : kNoOp;
}

std::vector<OpId> GraphView::users_of_kind(ValueId v, OpKind kind) const {
  std::vector<OpId> found;
  for (OpId user : users(v)) {
    if (graph_.op(user).kind == kind && (found.empty() || found.back() != user))
      found.push_back(user);
  }
  return found;
}

OpId GraphView::only_user(ValueId v, OpKind kind) const {
  const auto all = users(v);
  return all.size() == 1 && !is_output_[v] && graph_.op(all[0]).kind == kind ? all[0] : kNoOp;
}

bool GraphView::closed(std::span<const OpId> ops, std::span<const ValueId> except) const {
  for (OpId op : ops) {
    for (ValueId v : graph_.op(op).results) {
      if (std::find(except.begin(), except.end(), v) != except.end()) continue;
      if (is_output_[v]) return false;
      for (OpId user : users(v)) {
        if (std::find(ops.begin(), ops.end(), user) == ops.end()) return false;
      }
    }
  }
  return true;
}

bool Rewriter::absorb(std::span<const OpId> ops) {
  if (std::any_of(ops.begin(), ops.end(), [&](OpId o) { return absorbed_[o]; })) return false;
  for (OpId o : ops) absorbed_[o] = true;
  return true;
}

int32_t Rewriter::add(Replacement replacement) {
  replacements_.push_back(std::move(replacement));
  return num_replacements() - 1;
}

namespace {

/// One op of the new graph before it has a place in the order. Old ops come first in `nodes`,
/// replacements after.
struct Node {
  OpId old_op = kNoOp;
  int32_t replacement = -1;
  uint64_t key = 0;  // place in the old order, replacements behind the old op they are anchored at
};

/// Stable topological order (Kahn) of the surviving and the new ops.
class Assembler {
 public:
  Assembler(const Graph& old, const std::vector<bool>& absorbed,
            const std::vector<Replacement>& replacements)
      : old_(old),
        replacements_(replacements),
        value_node_(old.values().size(), -1),
        replacement_node_(replacements.size()) {
    for (OpId o = 0; o < old.ops().size(); ++o) {
      if (absorbed[o]) continue;
      for (ValueId v : old.op(o).results) value_node_[v] = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({o, -1, static_cast<uint64_t>(o) << 24});
    }
    for (size_t r = 0; r < replacements.size(); ++r) {
      const auto node = static_cast<int32_t>(nodes_.size());
      replacement_node_[r] = node;
      for (ValueId v : replacements[r].results) {
        if (v != kNoValue) value_node_[v] = node;
      }
      nodes_.push_back({kNoOp, static_cast<int32_t>(r),
                        (static_cast<uint64_t>(replacements[r].anchor) << 24) + 1 + r});
    }
  }

  Result<Graph> run() {
    order_nodes();
    if (order_.size() != nodes_.size())
      return invalid_plan("a rewrite made a cycle or left an operand without a producer");
    Graph graph;
    graph.name = old_.name;
    for (const std::string& segment : old_.segments()) graph.segment_index(segment);
    value_map_.assign(old_.values().size(), kNoValue);
    made_.resize(replacements_.size());
    for (const GraphInput& input : old_.inputs())
      value_map_[input.value] = graph.add_input(old_.type(input.value), input.role, input.name);
    for (int32_t n : order_) SGA_TRY(emit(graph, nodes_[static_cast<size_t>(n)]));
    for (const GraphOutput& output : old_.outputs())
      graph.add_output(value_map_[output.value], output.role, output.name);
    return graph;
  }

 private:
  template <class F>
  void for_each_dependency(const Node& node, F&& f) const {
    auto old_value = [&](ValueId v) {
      if (old_.value(v).producer != kNoOp) f(value_node_[v]);
    };
    if (node.old_op != kNoOp) {
      for (ValueId v : old_.op(node.old_op).operands) old_value(v);
      return;
    }
    for (const Ref& ref : replacements_[static_cast<size_t>(node.replacement)].operands) {
      if (ref.replacement >= 0) {
        f(replacement_node_[static_cast<size_t>(ref.replacement)]);
      } else {
        old_value(ref.old_value);
      }
    }
  }

  void order_nodes() {
    std::vector<int32_t> missing(nodes_.size(), 0);
    std::vector<std::vector<int32_t>> users(nodes_.size());
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for_each_dependency(nodes_[n], [&](int32_t from) {
        ++missing[n];
        if (from >= 0) users[static_cast<size_t>(from)].push_back(static_cast<int32_t>(n));
      });
    }
    auto later = [&](int32_t a, int32_t b) {
      return nodes_[static_cast<size_t>(a)].key > nodes_[static_cast<size_t>(b)].key;
    };
    std::priority_queue<int32_t, std::vector<int32_t>, decltype(later)> ready(later);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (missing[n] == 0) ready.push(static_cast<int32_t>(n));
    }
    while (!ready.empty()) {
      const int32_t n = ready.top();
      ready.pop();
      order_.push_back(n);
      for (int32_t user : users[static_cast<size_t>(n)]) {
        if (--missing[static_cast<size_t>(user)] == 0) ready.push(user);
      }
    }
  }

  Status emit(Graph& graph, const Node& node) {
    if (node.old_op != kNoOp) {
      const Op& op = old_.op(node.old_op);
      std::vector<ValueId> operands;
      std::vector<TensorType> types;
      for (ValueId v : op.operands) operands.push_back(value_map_[v]);
      for (ValueId v : op.results) types.push_back(old_.type(v));
      const OpId made =
          graph.add_op(op.kind, std::move(operands), op.attrs, types, op.phase, op.segment);
      for (size_t i = 0; i < op.results.size(); ++i)
        value_map_[op.results[i]] = graph.op(made).results[i];
      return {};
    }
    const Replacement& r = replacements_[static_cast<size_t>(node.replacement)];
    std::vector<ValueId> operands;
    std::vector<TensorType> operand_types;
    for (const Ref& ref : r.operands) {
      operands.push_back(
          ref.replacement >= 0
              ? made_[static_cast<size_t>(ref.replacement)][static_cast<size_t>(ref.result)]
              : value_map_[ref.old_value]);
      operand_types.push_back(graph.type(operands.back()));
    }
    SGA_ASSIGN(const auto types, op_info(r.kind).shape_rule(operand_types, r.attrs));
    const Op& anchor = old_.op(r.anchor);
    const OpId made =
        graph.add_op(r.kind, std::move(operands), r.attrs, types, anchor.phase, anchor.segment);
    made_[static_cast<size_t>(node.replacement)] = graph.op(made).results;
    for (size_t i = 0; i < r.results.size(); ++i) {
      if (r.results[i] == kNoValue) continue;
      const ValueId value = graph.op(made).results[i];
      if (graph.type(value) != old_.type(r.results[i])) {
        return invalid_plan("a rewrite to " + std::string(op_info(r.kind).name) +
                            " changes a type from " + old_.type(r.results[i]).to_string() + " to " +
                            graph.type(value).to_string());
      }
      value_map_[r.results[i]] = value;
    }
    return {};
  }

  const Graph& old_;
  const std::vector<Replacement>& replacements_;
  std::vector<Node> nodes_;
  std::vector<int32_t> value_node_;  // node that defines an old value; -1: an input or gone
  std::vector<int32_t> replacement_node_;
  std::vector<int32_t> order_;
  std::vector<ValueId> value_map_;
  std::vector<std::vector<ValueId>> made_;
};

}  // namespace

Result<Graph> Rewriter::build() const { return Assembler(graph_, absorbed_, replacements_).run(); }

}  // namespace sgactor::graph
