#include "graph/passes/plan_bodies.h"

#include "graph/base/units.h"
#include "graph/ir/op_table.h"
#include "graph/passes/plan_memory.h"
#include "graph/plan/body_storage.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

/// What all logits of a fused head take, in 8 bits with both layouts of their gradients; 0 for
/// other ops.
int64_t logit_bytes(const Graph& body, const Op& op) {
  const bool gradient = op.kind == OpKind::kLinearCrossEntropyGrad;
  if (!gradient && op.kind != OpKind::kLinearCrossEntropy) return 0;
  const TensorType& x = body.type(op.operands[gradient ? 1 : 0]);
  const TensorType& w = body.type(op.operands[gradient ? 2 : 1]);
  const int64_t bytes = dtype_bytes(x.dtype) == 1 ? 4 : dtype_bytes(x.dtype);
  return x.shape.dim(0) * w.shape.dim(0) * bytes;
}

class BodyPlanner {
 public:
  BodyPlanner(const Subgraph& subgraph, StorageModel storage, int64_t align_bytes,
              int64_t head_room_bytes)
      : subgraph_(subgraph),
        body_(subgraph.body),
        storage_(storage),
        align_bytes_(align_bytes),
        head_room_bytes_(head_room_bytes),
        groups_(find_view_groups(subgraph.body, storage)) {}

  Result<BodyMemory> run();

 private:
  struct Class {
    StorageClass storage;
    int32_t parent = -1;  // of the union-find forest; a root is its own parent
    int32_t num_outputs = 0;
    int32_t taken_at = -1;  // last op at which a result took over
  };

  int32_t find(int32_t c);
  int32_t class_of(ValueId v) { return find(groups_.group_of[v]); }
  void unite(int32_t into, int32_t from);
  void unite_in_place();
  void unite_reused();
  void try_reuse(OpId o, const AliasSpec& alias);
  Status check_classes();
  void place_values(BodyMemory& memory);

  const Subgraph& subgraph_;
  const Graph& body_;
  StorageModel storage_;
  int64_t align_bytes_;
  int64_t head_room_bytes_;
  BodyStorage groups_;
  std::vector<Class> classes_;  // by view group at first
};

int32_t BodyPlanner::find(int32_t c) {
  while (classes_[static_cast<size_t>(c)].parent != c) {
    auto& node = classes_[static_cast<size_t>(c)];
    node.parent = classes_[static_cast<size_t>(node.parent)].parent;
    c = node.parent;
  }
  return c;
}

void BodyPlanner::unite(int32_t into, int32_t from) {
  if (into == from) return;
  Class& a = classes_[static_cast<size_t>(into)];
  Class& b = classes_[static_cast<size_t>(from)];
  b.parent = into;
  a.storage.bytes = std::max(a.storage.bytes, b.storage.bytes);
  a.storage.first = std::min(a.storage.first, b.storage.first);
  a.storage.last = std::max(a.storage.last, b.storage.last);
  a.storage.input = std::max(a.storage.input, b.storage.input);
  a.storage.output = std::max(a.storage.output, b.storage.output);
  a.num_outputs += b.num_outputs;
}

void BodyPlanner::unite_in_place() {
  for (const Op& op : body_.ops()) {
    for (uint32_t r = 0; r < op.results.size(); ++r) {
      const ValueId operand = aliased_operand(op, r, AliasSpec::Kind::kMust);
      if (operand != kNoValue) unite(class_of(operand), class_of(op.results[r]));
    }
  }
}

void BodyPlanner::try_reuse(OpId o, const AliasSpec& alias) {
  const Op& op = body_.op(o);
  if (!may_reuse_operand(body_, groups_, op, alias, storage_)) return;
  const int32_t from = class_of(op.operands[static_cast<size_t>(alias.operand)]);
  const int32_t to = class_of(op.results[static_cast<size_t>(alias.result)]);
  const Class& old = classes_[static_cast<size_t>(from)];
  const Class& fresh = classes_[static_cast<size_t>(to)];
  const auto position = static_cast<int32_t>(o);
  if (from == to || old.storage.input >= 0 || old.storage.output >= 0 ||
      old.storage.last != position || old.storage.first == position || old.taken_at == position) {
    return;
  }
  // A result may have its place before its op runs (find_view_groups): then nothing but its own
  // group is in its class.
  const ValueId result = op.results[static_cast<size_t>(alias.result)];
  const int32_t begin = groups_.groups[static_cast<size_t>(groups_.group_of[result])].first;
  if (fresh.storage.input >= 0 || fresh.storage.first != begin) return;
  // Bytes of an input that an output replaces hold the input until its last use.
  if (fresh.storage.output >= 0 &&
      subgraph_.alias_input[static_cast<size_t>(fresh.storage.output)] >= 0) {
    return;
  }
  unite(from, to);
  classes_[static_cast<size_t>(from)].taken_at = position;
}

void BodyPlanner::unite_reused() {
  for (OpId o = 0; o < body_.ops().size(); ++o) {
    for (const AliasSpec& alias : op_info(body_.op(o).kind).aliases) {
      if (alias.kind == AliasSpec::Kind::kMay) try_reuse(o, alias);
    }
  }
}

Status BodyPlanner::check_classes() {
  for (size_t c = 0; c < classes_.size(); ++c) {
    const Class& k = classes_[c];
    if (find(static_cast<int32_t>(c)) != static_cast<int32_t>(c)) continue;
    if (k.num_outputs > 1) {
      return invalid_plan(
          fmt::format("output {} shares its bytes with another output", k.storage.output));
    }
    if (k.storage.input >= 0 && k.storage.output >= 0 &&
        subgraph_.alias_input[static_cast<size_t>(k.storage.output)] != k.storage.input) {
      return invalid_plan(
          fmt::format("output {} shares the bytes of input {}", k.storage.output, k.storage.input));
    }
  }
  return {};
}

void BodyPlanner::place_values(BodyMemory& memory) {
  std::vector<LiveRange> ranges;
  std::vector<int32_t> range_of(classes_.size(), -1);
  for (size_t c = 0; c < classes_.size(); ++c) {
    if (find(static_cast<int32_t>(c)) != static_cast<int32_t>(c)) continue;
    const StorageClass& s = classes_[c].storage;
    memory.classes.push_back(s);
    if (s.input >= 0 || s.output >= 0) continue;
    range_of[c] = static_cast<int32_t>(ranges.size());
    ranges.push_back({s.bytes, s.first, std::max(s.first, s.last)});
  }
  for (OpId o = 0; o < body_.ops().size(); ++o) {
    const int64_t room = std::min(head_room_bytes_, logit_bytes(body_, body_.op(o)));
    if (room > 0)
      ranges.push_back(
          {round_up(room, align_bytes_), static_cast<int32_t>(o), static_cast<int32_t>(o)});
  }
  const Packing packing = pack_ranges(ranges, align_bytes_);
  memory.workspace_bytes = packing.total_bytes;
  for (ValueId v = 0; v < body_.values().size(); ++v) {
    const auto c = static_cast<size_t>(class_of(v));
    const StorageClass& s = classes_[c].storage;
    const ViewGroup& group = groups_.groups[static_cast<size_t>(groups_.group_of[v])];
    using Space = ValuePlace::Space;
    if (group.input >= 0 || (s.input >= 0 && s.output < 0)) {
      memory.places.push_back({Space::kInput, s.input, 0});
    } else if (s.output >= 0) {
      memory.places.push_back({Space::kOutput, s.output, 0});
    } else {
      const auto range = static_cast<size_t>(range_of[c]);
      memory.places.push_back({Space::kWorkspace, 0, packing.offsets[range]});
    }
  }
}

Result<BodyMemory> BodyPlanner::run() {
  BodyMemory memory;
  for (const ViewGroup& g : groups_.groups) {
    Class c;
    c.storage = {round_up(g.bytes, align_bytes_), g.first, g.last, g.input, g.output};
    c.parent = static_cast<int32_t>(classes_.size());
    c.num_outputs = g.num_outputs;
    classes_.push_back(c);
  }
  unite_in_place();
  SGA_TRY(check_classes());
  for (size_t c = 0; c < classes_.size(); ++c) {
    const StorageClass& k = classes_[c].storage;
    const bool root = find(static_cast<int32_t>(c)) == static_cast<int32_t>(c);
    if (root && k.input < 0 && k.output < 0) memory.naive_bytes += k.bytes;
  }
  unite_reused();
  place_values(memory);
  return memory;
}

}  // namespace

Result<BodyMemory> plan_body(const Subgraph& subgraph, StorageModel storage, int64_t align_bytes,
                             int64_t head_room_bytes) {
  return BodyPlanner(subgraph, storage, align_bytes, head_room_bytes).run();
}

}  // namespace sgactor::graph
