#include "graph/plan/body_storage.h"

#include <algorithm>

namespace sgactor::graph {

ValueId aliased_operand(const Op& op, uint32_t result, AliasSpec::Kind kind) {
  for (const AliasSpec& alias : op_info(op.kind).aliases) {
    const auto operand = static_cast<size_t>(alias.operand);
    if (alias.kind == kind && alias.result == static_cast<int>(result) &&
        operand < op.operands.size()) {
      return op.operands[operand];
    }
  }
  return kNoValue;
}

ValueId view_root(const Graph& graph, ValueId v) {
  while (graph.value(v).producer != kNoOp) {
    const Value& value = graph.value(v);
    const ValueId source =
        aliased_operand(graph.op(value.producer), value.result, AliasSpec::Kind::kView);
    if (source == kNoValue) break;
    v = source;
  }
  return v;
}

ValueId storage_root(const Graph& graph, ValueId v) {
  while (true) {
    v = view_root(graph, v);
    const Value& value = graph.value(v);
    if (value.producer == kNoOp) return v;
    const ValueId source =
        aliased_operand(graph.op(value.producer), value.result, AliasSpec::Kind::kMust);
    if (source == kNoValue) return v;
    v = source;
  }
}

namespace {

bool makes_operands(OpKind kind) {
  return kind == OpKind::kSwiglu || kind == OpKind::kSwigluGrad || kind == OpKind::kRmsNorm ||
         kind == OpKind::kAddRmsNorm || kind == OpKind::kRotate;
}

/// Backends may make an operand where it is rounded, by one kernel: what the maker reads and makes
/// stays until then.
void keep_for_rounding(const Graph& body, OpId rounder, BodyStorage& s) {
  const OpId maker = body.value(view_root(body, body.op(rounder).operands[0])).producer;
  if (maker == kNoOp || !makes_operands(body.op(maker).kind)) return;
  const auto keep = [&](ValueId v) {
    int32_t& last = s.groups[static_cast<size_t>(s.group_of[v])].last;
    last = std::max(last, static_cast<int32_t>(rounder));
  };
  for (ValueId v : body.op(maker).operands) keep(v);
  for (ValueId v : body.op(maker).results) keep(v);
}

/// Backends may make a product of gates, computed again for the backward pass, and the gradient of
/// the same gates by one kernel, where the product stands: the gradient has its places from there.
void make_with_product(const Graph& body, OpId gradient, BodyStorage& s) {
  const Op& op = body.op(gradient);
  for (OpId o = gradient; o-- > 0;) {
    const Op& product = body.op(o);
    if (product.kind != OpKind::kSwiglu || product.operands[0] != op.operands[0] ||
        product.operands[1] != op.operands[1]) {
      continue;
    }
    const OpId maker = body.value(op.operands[2]).producer;
    if (maker != kNoOp && maker >= o) return;
    for (ValueId v : op.results) {
      int32_t& first = s.groups[static_cast<size_t>(s.group_of[v])].first;
      first = std::min(first, static_cast<int32_t>(o));
    }
    return;
  }
}

}  // namespace

BodyStorage find_view_groups(const Graph& body, StorageModel storage) {
  BodyStorage s;
  s.group_of.assign(body.values().size(), -1);
  const auto add = [&](ValueId v, int32_t first, int32_t input) {
    s.group_of[v] = static_cast<int32_t>(s.groups.size());
    s.groups.push_back({v, first, first, input, -1, 0, storage_bytes(body.type(v), storage)});
  };
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    add(body.inputs()[i].value, -1, static_cast<int32_t>(i));
  }
  for (OpId o = 0; o < body.ops().size(); ++o) {
    const Op& op = body.op(o);
    for (ValueId v : op.operands) {
      s.groups[static_cast<size_t>(s.group_of[v])].last = static_cast<int32_t>(o);
    }
    for (uint32_t r = 0; r < op.results.size(); ++r) {
      const ValueId v = op.results[r];
      const ValueId source = aliased_operand(op, r, AliasSpec::Kind::kView);
      if (source == kNoValue) {
        add(v, static_cast<int32_t>(o), -1);
        continue;
      }
      s.group_of[v] = s.group_of[source];
      ViewGroup& group = s.groups[static_cast<size_t>(s.group_of[v])];
      group.bytes = std::max(group.bytes, storage_bytes(body.type(v), storage));
    }
  }
  for (OpId o = 0; o < body.ops().size(); ++o) {
    if (body.op(o).kind == OpKind::kQuantizeF8Both) keep_for_rounding(body, o, s);
    if (body.op(o).kind == OpKind::kSwigluGrad) make_with_product(body, o, s);
  }
  for (size_t j = 0; j < body.outputs().size(); ++j) {
    ViewGroup& group = s.groups[static_cast<size_t>(s.group_of[body.outputs()[j].value])];
    group.last = static_cast<int32_t>(body.ops().size());
    if (group.num_outputs++ == 0) group.output = static_cast<int32_t>(j);
  }
  return s;
}

bool may_reuse_operand(const Graph& body, const BodyStorage& s, const Op& op,
                       const AliasSpec& alias, StorageModel storage) {
  const auto index = static_cast<size_t>(alias.operand);
  if (alias.kind != AliasSpec::Kind::kMay || index >= op.operands.size()) return false;
  const TensorType& result = body.type(op.results[static_cast<size_t>(alias.result)]);
  const int32_t group = s.group_of[op.operands[index]];
  // A smaller operand in the same bytes would be overwritten before its last element is read.
  return std::all_of(op.operands.begin(), op.operands.end(), [&](ValueId v) {
    return s.group_of[v] != group ||
           (body.type(v).num_elements() == result.num_elements() &&
            storage_bytes(body.type(v), storage) == storage_bytes(result, storage));
  });
}

}  // namespace sgactor::graph
