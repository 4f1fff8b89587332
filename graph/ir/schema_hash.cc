#include "graph/base/hash.h"
#include "graph/ir/op_table.h"
#include "graph/ir/serial.h"

#include <bit>

namespace sgactor::graph {
namespace {

// Text is hashed with XXH3 and words are mixed in order. Ops are hashed by name, so that the hash
// outlives a new row of the op table.
uint64_t mix_type(uint64_t state, const TensorType& type) {
  state = mix64(state, static_cast<uint64_t>(type.dtype));
  state = mix64(state, static_cast<uint64_t>(type.shape.rank()));
  for (int64_t dim : type.shape.dims()) state = mix64(state, static_cast<uint64_t>(dim));
  return state;
}

struct AttrHash {
  uint64_t operator()(int64_t value) const { return static_cast<uint64_t>(value); }
  uint64_t operator()(double value) const { return std::bit_cast<uint64_t>(value); }
  uint64_t operator()(bool value) const { return value ? 1 : 0; }
  uint64_t operator()(const std::string& value) const { return hash64(value); }
  uint64_t operator()(const std::vector<int64_t>& value) const {
    uint64_t state = value.size();
    for (int64_t item : value) state = mix64(state, static_cast<uint64_t>(item));
    return state;
  }
  uint64_t operator()(DType value) const { return static_cast<uint64_t>(value); }
};

uint64_t mix_attrs(uint64_t state, const Attrs& attrs) {
  for (const auto& [name, value] : attrs.entries()) {
    state = mix64(state, hash64(name));
    state = mix64(state, value.index());
    state = mix64(state, std::visit(AttrHash{}, value));
  }
  return mix64(state, attrs.entries().size());
}

/// A value's hash says how it is computed from the inputs; inputs stand for themselves by position.
uint64_t hash_graph(const Graph& graph, bool with_names) {
  std::vector<uint64_t> values(graph.values().size());
  uint64_t state = with_names ? 1 : 0;
  for (const GraphInput& input : graph.inputs()) {
    state = mix64(state, static_cast<uint64_t>(input.role));
    state = mix_type(state, graph.type(input.value));
    if (with_names) state = mix64(state, hash64(input.name));
    values[input.value] = state;
  }
  // Adding the hashes of all ops makes ops count that no output depends on, and repeated ones as
  // often as they stand there, whatever their order.
  uint64_t sum = 0;
  for (const Op& op : graph.ops()) {
    uint64_t hash = mix_attrs(hash64(op_info(op.kind).name), op.attrs);
    for (ValueId v : op.operands) hash = mix64(hash, values[v]);
    hash = mix64(hash, op.operands.size());
    for (ValueId v : op.results) hash = mix_type(hash, graph.type(v));
    sum += hash;
    for (size_t i = 0; i < op.results.size(); ++i) values[op.results[i]] = mix64(hash, i);
  }
  state = mix64(mix64(state, graph.inputs().size()), sum);
  for (const GraphOutput& output : graph.outputs()) {
    state = mix64(state, values[output.value]);
    state = mix64(state, static_cast<uint64_t>(output.role));
    if (with_names) state = mix64(state, hash64(output.name));
  }
  return mix64(state, graph.outputs().size());
}

}  // namespace

uint64_t schema_hash(const Graph& graph) { return hash_graph(graph, true); }
uint64_t structure_hash(const Graph& graph) { return hash_graph(graph, false); }

}  // namespace sgactor::graph
