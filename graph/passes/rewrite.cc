#include "graph/passes/rewrite.h"

#include "graph/base/hash.h"
#include "graph/ir/op_table.h"
#include "graph/plan/body_storage.h"

#include <bit>
#include <unordered_map>

namespace sgactor::graph {
namespace {

uint64_t hash_attr(const Attr& attr) {
  struct Hasher {
    uint64_t operator()(int64_t v) const { return static_cast<uint64_t>(v); }
    uint64_t operator()(double v) const { return std::bit_cast<uint64_t>(v); }
    uint64_t operator()(bool v) const { return v ? 1 : 0; }
    uint64_t operator()(const std::string& v) const { return hash64(std::string_view(v)); }
    uint64_t operator()(const std::vector<int64_t>& v) const {
      uint64_t h = v.size();
      for (int64_t x : v) h = mix64(h, static_cast<uint64_t>(x));
      return h;
    }
    uint64_t operator()(DType v) const { return static_cast<uint64_t>(v); }
  };
  return mix64(attr.index(), std::visit(Hasher{}, attr));
}

uint64_t hash_op(const Op& op) {
  uint64_t h = mix64(static_cast<uint64_t>(op.kind), static_cast<uint64_t>(op.phase));
  h = mix64(h, static_cast<uint64_t>(op.segment));
  for (ValueId v : op.operands) h = mix64(h, v);
  for (const auto& [name, attr] : op.attrs.entries()) {
    h = mix64(mix64(h, hash64(std::string_view(name))), hash_attr(attr));
  }
  return h;
}

bool same_computation(const Op& a, const Op& b) {
  return a.kind == b.kind && a.phase == b.phase && a.segment == b.segment &&
         a.operands == b.operands && a.attrs == b.attrs;
}

/// Ops that must stay apart from equal ones: those that update an operand in place, and those whose
/// results are updated (each update needs bytes of its own).
std::vector<bool> find_unmergeable(const Graph& graph) {
  std::vector<bool> found(graph.ops().size(), false);
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.op(o);
    for (uint32_t r = 0; r < op.results.size(); ++r) {
      ValueId v = aliased_operand(op, r, AliasSpec::Kind::kMust);
      if (v == kNoValue) continue;
      found[o] = true;
      // The whole chain of views between the owner of the bytes and the update.
      while (v != kNoValue && graph.value(v).producer != kNoOp) {
        const Value& value = graph.value(v);
        found[value.producer] = true;
        v = aliased_operand(graph.op(value.producer), value.result, AliasSpec::Kind::kView);
      }
    }
  }
  return found;
}

std::vector<bool> find_needed(const Graph& graph) {
  std::vector<bool> value_needed(graph.values().size(), false);
  for (const GraphOutput& output : graph.outputs()) value_needed[output.value] = true;
  std::vector<bool> op_needed(graph.ops().size(), false);
  for (size_t o = graph.ops().size(); o-- > 0;) {
    const Op& op = graph.op(static_cast<OpId>(o));
    for (ValueId v : op.results) op_needed[o] = op_needed[o] || value_needed[v];
    if (!op_needed[o]) continue;
    for (ValueId v : op.operands) value_needed[v] = true;
  }
  return op_needed;
}

}  // namespace

GraphCopier::GraphCopier(const Graph& source)
    : source_(source), map_(source.values().size(), kNoValue) {
  graph_.name = source.name;
  for (const std::string& segment : source.segments()) graph_.segment_index(segment);
  for (const GraphInput& input : source.inputs()) {
    map_[input.value] = graph_.add_input(source.type(input.value), input.role, input.name);
  }
}

OpId GraphCopier::copy(OpId op) {
  const Op& old = source_.op(op);
  std::vector<ValueId> operands;
  operands.reserve(old.operands.size());
  for (ValueId v : old.operands) operands.push_back(map_[v]);
  const OpId copied = copy_as(op, std::move(operands), old.phase, old.segment);
  for (size_t r = 0; r < old.results.size(); ++r) {
    map_[old.results[r]] = graph_.op(copied).results[r];
  }
  return copied;
}

OpId GraphCopier::copy_as(OpId op, std::vector<ValueId> operands, Phase phase, int32_t segment) {
  const Op& old = source_.op(op);
  std::vector<TensorType> types;
  types.reserve(old.results.size());
  for (ValueId v : old.results) types.push_back(source_.type(v));
  return graph_.add_op(old.kind, std::move(operands), old.attrs, types, phase, segment);
}

void GraphCopier::copy_outputs() {
  for (const GraphOutput& output : source_.outputs()) {
    graph_.add_output(map_[output.value], output.role, output.name);
  }
}

Graph clean_graph(const Graph& graph, bool merge_equal) {
  const std::vector<bool> needed = find_needed(graph);
  const std::vector<bool> unmergeable = find_unmergeable(graph);
  GraphCopier copier(graph);
  std::unordered_multimap<uint64_t, OpId> seen;  // by hash, ops of the new graph
  for (OpId o = 0; o < graph.ops().size(); ++o) {
    if (!needed[o]) continue;
    const Op& old = graph.op(o);
    if (!merge_equal || unmergeable[o]) {
      copier.copy(o);
      continue;
    }
    Op probe{old.kind, {}, {}, old.attrs, old.phase, old.segment};
    for (ValueId v : old.operands) probe.operands.push_back(copier[v]);
    const uint64_t hash = hash_op(probe);
    OpId equal = kNoOp;
    const auto [begin, end] = seen.equal_range(hash);
    for (auto it = begin; it != end && equal == kNoOp; ++it) {
      if (same_computation(copier.graph().op(it->second), probe)) equal = it->second;
    }
    if (equal == kNoOp) {
      seen.emplace(hash, copier.copy(o));
      continue;
    }
    for (size_t r = 0; r < old.results.size(); ++r) {
      copier.bind(old.results[r], copier.graph().op(equal).results[r]);
    }
  }
  copier.copy_outputs();
  return copier.take();
}

Graph extract_ops(const Graph& graph, const std::vector<OpId>& ops, std::vector<ValueId>* inputs,
                  std::vector<ValueId>* outputs) {
  return extract_ops(GraphView(graph), ops, inputs, outputs);
}

namespace {

/// Values defined outside of `ops`, in order of first use.
std::vector<ValueId> outside_operands(const Graph& graph, const std::vector<OpId>& ops,
                                      const std::vector<bool>& inside) {
  std::vector<ValueId> found;
  std::unordered_map<ValueId, bool> seen;
  for (OpId o : ops) {
    for (ValueId v : graph.op(o).operands) {
      const OpId producer = graph.value(v).producer;
      if (producer != kNoOp && inside[producer]) continue;
      if (seen.emplace(v, true).second) found.push_back(v);
    }
  }
  return found;
}

bool used_outside(const GraphView& view, ValueId v, const std::vector<bool>& inside) {
  if (view.is_output(v)) return true;
  for (OpId user : view.users(v)) {
    if (!inside[user]) return true;
  }
  return false;
}

void add_outer_output(const Graph& graph, Graph& body, ValueId outer, ValueId inner) {
  for (const GraphOutput& output : graph.outputs()) {
    if (output.value != outer) continue;
    body.add_output(inner, output.role, output.name);
    return;
  }
  body.add_output(inner, Role::kActivation, "out" + std::to_string(body.outputs().size()));
}

}  // namespace

Graph extract_ops(const GraphView& view, const std::vector<OpId>& ops, std::vector<ValueId>* inputs,
                  std::vector<ValueId>* outputs,
                  const std::map<ValueId, const GraphOutput*>& named) {
  const Graph& graph = view.graph();
  Graph body;
  body.name = graph.name;
  std::vector<bool> inside(graph.ops().size(), false);
  for (OpId o : ops) inside[o] = true;
  std::vector<ValueId> map(graph.values().size(), kNoValue);
  *inputs = outside_operands(graph, ops, inside);
  outputs->clear();
  for (ValueId v : *inputs) {
    const Value& outer = graph.value(v);
    const bool graph_input = outer.producer == kNoOp;
    if (const auto known = named.find(v); known != named.end()) {
      map[v] = body.add_input(outer.type, known->second->role, known->second->name);
      continue;
    }
    map[v] = graph_input ? body.add_input(outer.type, graph.inputs()[outer.result].role,
                                          graph.inputs()[outer.result].name)
                         : body.add_input(outer.type, Role::kActivation,
                                          "in" + std::to_string(body.inputs().size()));
  }
  for (OpId o : ops) {
    const Op& op = graph.op(o);
    std::vector<ValueId> operands;
    operands.reserve(op.operands.size());
    for (ValueId v : op.operands) operands.push_back(map[v]);
    std::vector<TensorType> types;
    for (ValueId v : op.results) types.push_back(graph.type(v));
    const int32_t segment = body.segment_index(segment_name(graph, op));
    const OpId copied =
        body.add_op(op.kind, std::move(operands), op.attrs, types, op.phase, segment);
    for (size_t r = 0; r < op.results.size(); ++r) map[op.results[r]] = body.op(copied).results[r];
  }
  for (OpId o : ops) {
    for (ValueId v : graph.op(o).results) {
      if (!used_outside(view, v, inside)) continue;
      outputs->push_back(v);
      if (const auto known = named.find(v); known != named.end()) {
        body.add_output(map[v], known->second->role, known->second->name);
      } else {
        add_outer_output(graph, body, v, map[v]);
      }
    }
  }
  return body;
}

std::string segment_name(const Graph& graph, const Op& op) {
  const auto index = static_cast<size_t>(op.segment);
  return index < graph.segments().size() ? graph.segments()[index] : std::string();
}

}  // namespace sgactor::graph
