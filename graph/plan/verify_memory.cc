#include "graph/plan/body_storage.h"
#include "graph/plan/plan.h"
#include "graph/plan/program_order.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <map>

namespace sgactor::graph {
namespace {

/// Disjoint address ranges in use at one time, each with an owner.
class AddressMap {
 public:
  /// Owner of a range that overlaps [offset, offset + bytes), or -1.
  [[nodiscard]] int64_t find_overlap(int64_t offset, int64_t bytes) const {
    if (bytes == 0) return -1;
    auto after = ranges_.lower_bound(offset);
    if (after != ranges_.end() && after->first < offset + bytes) return after->second.owner;
    if (after != ranges_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second.bytes > offset) return before->second.owner;
    }
    return -1;
  }
  /// Pre: nothing overlaps it.
  void insert(int64_t offset, int64_t bytes, int64_t owner) {
    if (bytes > 0) ranges_.emplace(offset, Range{bytes, owner});
  }
  void erase(int64_t offset, int64_t bytes) {
    if (bytes > 0) ranges_.erase(offset);
  }

 private:
  struct Range {
    int64_t bytes = 0;
    int64_t owner = 0;
  };
  std::map<int64_t, Range> ranges_;
};

bool inside(int64_t offset, int64_t bytes, int64_t total) {
  return offset >= 0 && bytes >= 0 && bytes <= total && offset <= total - bytes &&
         offset % kMinAlignBytes == 0;
}

/// Executes a body's ops in thought and checks that no value is overwritten while it is needed.
class BodyVerifier {
 public:
  BodyVerifier(const Subgraph& subgraph, StorageModel storage)
      : subgraph_(subgraph),
        body_(subgraph.body),
        storage_(storage),
        groups_(find_view_groups(subgraph.body, storage)) {}

  Status run();

 private:
  using Space = ValuePlace::Space;

  Status check_bounds() const;
  Status check_bindings() const;
  Status place_result(OpId o, uint32_t result);
  /// Group that would be overwritten, or -1.
  [[nodiscard]] int64_t occupant(const ValuePlace& place, int64_t bytes) const;
  void occupy(const ValuePlace& place, int64_t bytes, int64_t group);
  void release(const ValuePlace& place, int64_t bytes, int64_t group);
  [[nodiscard]] bool reuses(const Op& op, uint32_t result, int64_t occupant) const;
  [[nodiscard]] const ValuePlace& place(ValueId v) const { return subgraph_.places[v]; }
  /// Inputs and outputs by buffer: an output that updates an input in place is that input.
  [[nodiscard]] size_t space_index(const ValuePlace& p) const;

  const Subgraph& subgraph_;
  const Graph& body_;
  StorageModel storage_;
  BodyStorage groups_;
  AddressMap workspace_;
  std::vector<int64_t> held_;                // by space_index: group whose bytes it holds, or -1
  std::vector<bool> writable_;               // by space_index
  std::vector<std::vector<int32_t>> dying_;  // by op: groups that are not needed after it
};

size_t BodyVerifier::space_index(const ValuePlace& p) const {
  const auto index = static_cast<size_t>(p.index);
  if (p.space == Space::kInput) return index;
  const int32_t alias = subgraph_.alias_input[index];
  return alias >= 0 ? static_cast<size_t>(alias) : body_.inputs().size() + index;
}

Status BodyVerifier::check_bounds() const {
  if (subgraph_.places.size() != body_.values().size()) {
    return invalid_plan(
        fmt::format("{} places for {} values", subgraph_.places.size(), body_.values().size()));
  }
  for (ValueId v = 0; v < body_.values().size(); ++v) {
    const ValuePlace& p = place(v);
    int64_t total = 0;
    if (p.space == Space::kWorkspace) {
      total = subgraph_.workspace_bytes;
    } else {
      const bool input = p.space == Space::kInput;
      const size_t count = input ? body_.inputs().size() : body_.outputs().size();
      if ((!input && p.space != Space::kOutput) || p.index < 0 ||
          static_cast<size_t>(p.index) >= count) {
        return invalid_plan(fmt::format("value {} has no such place", v));
      }
      const auto index = static_cast<size_t>(p.index);
      const ValueId owner = input ? body_.inputs()[index].value : body_.outputs()[index].value;
      total = p.offset == 0 ? storage_bytes(body_.type(owner), storage_) : -1;
    }
    if (!inside(p.offset, storage_bytes(body_.type(v), storage_), total)) {
      return invalid_plan(fmt::format("value {} lies outside its place or is not aligned", v));
    }
    if (p != place(view_root(body_, v))) {
      return invalid_plan(fmt::format("value {} is a view and lies elsewhere", v));
    }
  }
  return {};
}

Status BodyVerifier::check_bindings() const {
  for (size_t i = 0; i < body_.inputs().size(); ++i) {
    const ValuePlace& p = place(body_.inputs()[i].value);
    if (p.space == Space::kWorkspace || space_index(p) != i) {
      return invalid_plan(fmt::format("input {} does not lie in its buffer", i));
    }
  }
  for (size_t j = 0; j < body_.outputs().size(); ++j) {
    const ValuePlace expected{Space::kOutput, static_cast<int32_t>(j), 0};
    const ValuePlace& p = place(body_.outputs()[j].value);
    if (p.space == Space::kWorkspace || space_index(p) != space_index(expected)) {
      return invalid_plan(fmt::format("output {} does not lie in its buffer", j));
    }
  }
  return {};
}

int64_t BodyVerifier::occupant(const ValuePlace& p, int64_t bytes) const {
  return p.space == Space::kWorkspace ? workspace_.find_overlap(p.offset, bytes)
                                      : held_[space_index(p)];
}

void BodyVerifier::occupy(const ValuePlace& p, int64_t bytes, int64_t group) {
  if (p.space == Space::kWorkspace) {
    workspace_.insert(p.offset, bytes, group);
  } else {
    held_[space_index(p)] = group;
  }
}

void BodyVerifier::release(const ValuePlace& p, int64_t bytes, int64_t group) {
  if (p.space != Space::kWorkspace) {
    int64_t& held = held_[space_index(p)];
    if (held == group) held = -1;
  } else if (workspace_.find_overlap(p.offset, bytes) == group) {
    workspace_.erase(p.offset, bytes);
  }
}

bool BodyVerifier::reuses(const Op& op, uint32_t result, int64_t occupant) const {
  for (const AliasSpec& alias : op_info(op.kind).aliases) {
    if (alias.result != static_cast<int>(result) || alias.kind == AliasSpec::Kind::kView) continue;
    const ValueId operand = op.operands[static_cast<size_t>(alias.operand)];
    if (groups_.group_of[operand] != occupant) continue;
    if (alias.kind == AliasSpec::Kind::kMust) return true;
    const ValuePlace& from = place(operand);
    const ValuePlace& to = place(op.results[result]);
    const bool same = from.space == Space::kWorkspace || to.space == Space::kWorkspace
                          ? from == to
                          : space_index(from) == space_index(to);
    if (same && may_reuse_operand(body_, groups_, op, alias, storage_)) return true;
  }
  return false;
}

Status BodyVerifier::place_result(OpId o, uint32_t result) {
  const Op& op = body_.op(o);
  const ValueId v = op.results[result];
  const ViewGroup& group = groups_.groups[static_cast<size_t>(groups_.group_of[v])];
  if (group.root != v) return {};
  const auto error = [&](std::string_view rule) {
    return invalid_plan(
        fmt::format("op {} {}: result {} {}", o, op_info(op.kind).name, result, rule));
  };
  if (place(v).space != Space::kWorkspace && !writable_[space_index(place(v))]) {
    return error("overwrites an input");
  }
  const ValueId updated = aliased_operand(op, result, AliasSpec::Kind::kMust);
  if (updated != kNoValue) {
    const ValuePlace& from = place(updated);
    const bool same = from.space == Space::kWorkspace || place(v).space == Space::kWorkspace
                          ? from == place(v)
                          : space_index(from) == space_index(place(v));
    if (!same) return error("does not lie where the operand lies that it updates");
  }
  for (int64_t other = occupant(place(v), group.bytes); other >= 0;
       other = occupant(place(v), group.bytes)) {
    const ViewGroup& old = groups_.groups[static_cast<size_t>(other)];
    const bool dies = old.last == static_cast<int32_t>(o) && old.first < static_cast<int32_t>(o);
    if (!dies || !reuses(op, result, other)) {
      return error(fmt::format("overwrites value {}, which is needed", old.root));
    }
    release(place(old.root), old.bytes, other);
  }
  occupy(place(v), group.bytes, groups_.group_of[v]);
  return {};
}

Status BodyVerifier::run() {
  SGA_TRY(check_bounds());
  SGA_TRY(check_bindings());
  const size_t num_spaces = body_.inputs().size() + body_.outputs().size();
  held_.assign(num_spaces, -1);
  writable_.assign(num_spaces, false);
  for (size_t j = 0; j < body_.outputs().size(); ++j) {
    writable_[space_index({Space::kOutput, static_cast<int32_t>(j), 0})] = true;
  }
  dying_.assign(body_.ops().size() + 1, {});
  for (size_t g = 0; g < groups_.groups.size(); ++g) {
    const ViewGroup& group = groups_.groups[g];
    if (group.input >= 0) held_[static_cast<size_t>(group.input)] = static_cast<int64_t>(g);
    if (group.last >= 0) dying_[static_cast<size_t>(group.last)].push_back(static_cast<int32_t>(g));
  }
  // An input that nothing reads holds nothing that is needed.
  for (const ViewGroup& group : groups_.groups) {
    if (group.input >= 0 && group.last < 0) held_[static_cast<size_t>(group.input)] = -1;
  }
  for (OpId o = 0; o < body_.ops().size(); ++o) {
    for (uint32_t r = 0; r < body_.op(o).results.size(); ++r) SGA_TRY(place_result(o, r));
    for (int32_t g : dying_[o]) {
      const ViewGroup& group = groups_.groups[static_cast<size_t>(g)];
      release(place(group.root), group.bytes, g);
    }
  }
  return {};
}

/// Time during which a slot of a buffer holds something, in places of the program order.
struct SlotInterval {
  int32_t first = 0;
  int32_t last = 0;
  int32_t buffer = 0;
  int32_t slot = 0;
};

class ArenaVerifier {
 public:
  ArenaVerifier(const Plan& plan, const RankProgram& program) : plan_(plan), program_(program) {}

  Status run();

 private:
  Status check_bounds() const;
  void collect_intervals();
  void touch(BufferId id, const Firing& firing, int32_t position);
  Status check_overlaps();
  [[nodiscard]] const Buffer& buffer(int32_t id) const {
    return program_.buffers[static_cast<size_t>(id)];
  }

  const Plan& plan_;
  const RankProgram& program_;
  std::vector<SlotInterval> intervals_;
  std::vector<std::vector<int64_t>> interval_of_;  // by buffer and micro-batch; -1: none
  std::vector<bool> prepared_;                     // by buffer: serves all micro-batches
  int32_t end_ = 0;                                // firings of all lanes
};

Status ArenaVerifier::check_bounds() const {
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& b = program_.buffers[i];
    bool good = b.offsets.size() == static_cast<size_t>(b.num_slots);
    for (int64_t offset : b.offsets) good = good && inside(offset, b.bytes, program_.arena_bytes);
    if (!good) {
      return invalid_plan(fmt::format(
          "buffer {} \"{}\" has no aligned place for each slot in the arena", i, b.name));
    }
  }
  for (const Launch& l : program_.launches) {
    if (l.kind != LaunchKind::kSubgraph) continue;
    const int64_t needed = plan_.subgraphs[static_cast<size_t>(l.subgraph)].workspace_bytes;
    const int64_t given = l.workspace == kNoBuffer ? 0 : buffer(l.workspace).bytes;
    if (given < needed) {
      return invalid_plan(fmt::format("launch \"{}\" needs a workspace of {} bytes and has {}",
                                      l.name, needed, given));
    }
  }
  return {};
}

bool always_live(BufferKind kind) { return is_persistent(kind) || kind == BufferKind::kBatch; }

void ArenaVerifier::touch(BufferId id, const Firing& firing, int32_t position) {
  const Buffer& b = buffer(id);
  if (always_live(b.kind)) return;
  std::vector<int64_t>& known = interval_of_[static_cast<size_t>(id)];
  const auto m = prepared_[static_cast<size_t>(id)] ? 0 : static_cast<size_t>(firing.micro_batch);
  if (known.size() <= m) known.resize(m + 1, -1);
  if (known[m] < 0) {
    known[m] = static_cast<int64_t>(intervals_.size());
    intervals_.push_back({position, position, id, static_cast<int32_t>(m) % b.num_slots});
  }
  intervals_[static_cast<size_t>(known[m])].last = position;
}

void ArenaVerifier::collect_intervals() {
  for (const Lane& lane : program_.lanes) end_ += static_cast<int32_t>(lane.order.size());
  interval_of_.assign(program_.buffers.size(), {});
  prepared_ = prepared_buffers(program_);
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& b = program_.buffers[i];
    if (!always_live(b.kind)) continue;
    for (int32_t slot = 0; slot < b.num_slots; ++slot) {
      intervals_.push_back({0, end_, static_cast<int32_t>(i), slot});
    }
  }
  for_each_touch(program_,
                 [&](BufferId id, const Firing& f, int32_t index, bool) { touch(id, f, index); });
}

Status ArenaVerifier::check_overlaps() {
  // Intervals stand in order of their first position; those that end at a position, by position.
  std::vector<std::vector<size_t>> ending(static_cast<size_t>(end_) + 1);
  for (size_t i = 0; i < intervals_.size(); ++i) {
    ending[static_cast<size_t>(intervals_[i].last)].push_back(i);
  }
  AddressMap used;
  int32_t ended = 0;
  const auto offset = [&](const SlotInterval& i) {
    return buffer(i.buffer).offsets[static_cast<size_t>(i.slot)];
  };
  for (const SlotInterval& now : intervals_) {
    for (; ended < now.first; ++ended) {
      for (size_t i : ending[static_cast<size_t>(ended)]) {
        const SlotInterval& old = intervals_[i];
        used.erase(offset(old), buffer(old.buffer).bytes);
      }
    }
    const int64_t bytes = buffer(now.buffer).bytes;
    const int64_t other = used.find_overlap(offset(now), bytes);
    if (other >= 0) {
      return invalid_plan(fmt::format(
          "buffers \"{}\" and \"{}\" share bytes while both are live at position {}",
          buffer(static_cast<int32_t>(other)).name, buffer(now.buffer).name, now.first));
    }
    used.insert(offset(now), bytes, now.buffer);
  }
  return {};
}

Status ArenaVerifier::run() {
  SGA_TRY(check_bounds());
  collect_intervals();
  return check_overlaps();
}

}  // namespace

Status verify_memory(const Plan& plan) {
  for (size_t i = 0; i < plan.subgraphs.size(); ++i) {
    const Subgraph& subgraph = plan.subgraphs[i];
    SGA_TRY(BodyVerifier(subgraph, plan.storage)
                .run()
                .with_context(fmt::format("subgraph {} \"{}\"", i, subgraph.name)));
  }
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    SGA_TRY(ArenaVerifier(plan, plan.programs[i]).run().with_context(fmt::format("program {}", i)));
  }
  return {};
}

}  // namespace sgactor::graph
