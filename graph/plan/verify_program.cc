#include "graph/plan/verify_program.h"

#include "graph/ir/op_table.h"
#include "graph/plan/program_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace sgactor::graph {
namespace {

constexpr size_t kMaxLanes = 64;

class ProgramVerifier {
 public:
  ProgramVerifier(const Plan& plan, const RankProgram& program) : plan_(plan), program_(program) {}

  Status run();

 private:
  Status check_buffer(const Buffer& buffer) const;
  Status check_launch(const Launch& launch) const;
  Status check_indices(const Launch& launch) const;
  Status check_signature(const Launch& launch) const;
  Status check_communication(const Launch& launch) const;
  Status check_pair(const Launch& launch, const TensorType& in, const TensorType& out) const;
  [[nodiscard]] int64_t num_members(int32_t group) const;
  Status collect_writers();
  Status check_writer(const Buffer& buffer, LaunchId launch) const;
  Status check_edges(LaunchId id) const;
  Status check_edge(LaunchId id, const LaunchInput& input) const;
  Status check_firing_counts() const;
  Status check_order();
  [[nodiscard]] bool ready(const Firing& firing) const;
  Status check_starts() const;
  Status check_program_order();
  Status check_update_order() const;
  Status note_updates(const Firing& firing, std::vector<LaunchId>& updated) const;
  /// All lanes but the first carry communication, so that firings have one planned order.
  [[nodiscard]] bool has_program_order() const;

  [[nodiscard]] const Buffer& buffer(BufferId id) const {
    return program_.buffers[static_cast<size_t>(id)];
  }
  [[nodiscard]] const Launch& launch(LaunchId id) const {
    return program_.launches[static_cast<size_t>(id)];
  }
  [[nodiscard]] bool is_buffer(BufferId id) const {
    return id >= 0 && static_cast<size_t>(id) < program_.buffers.size();
  }
  [[nodiscard]] bool is_launch(LaunchId id) const {
    return id >= 0 && static_cast<size_t>(id) < program_.launches.size();
  }
  /// How often a launch fires in a step.
  [[nodiscard]] int64_t num_firings(LaunchId id) const {
    return fires_per_micro_batch(launch(id).phase) ? program_.num_micro_batches : 1;
  }

  const Plan& plan_;
  const RankProgram& program_;
  std::vector<std::vector<LaunchId>> writers_;  // by buffer
  std::vector<int64_t> fired_;                  // by launch, while the order is checked
};

Status ProgramVerifier::check_buffer(const Buffer& b) const {
  if (b.kind > BufferKind::kWorkspace) return invalid_plan("unknown kind");
  SGA_TRY(check_type(b.type));
  const bool workspace = b.kind == BufferKind::kWorkspace;
  if (b.bytes < 0 || (!workspace && b.bytes != storage_bytes(b.type, plan_.storage))) {
    return invalid_plan(fmt::format("{} bytes for {}", b.bytes, b.type.to_string()));
  }
  const int32_t most_slots = is_persistent(b.kind) ? 1 : program_.num_micro_batches;
  if (b.num_slots < 1 || b.num_slots > most_slots) {
    return invalid_plan(fmt::format("{} slots, expected 1 to {}", b.num_slots, most_slots));
  }
  const auto length = static_cast<int64_t>(program_.lanes[0].order.size());
  if (b.first_use < 0 || b.last_use < b.first_use || b.last_use >= std::max<int64_t>(length, 1)) {
    return invalid_plan(
        fmt::format("live range [{}, {}] in an order of {}", b.first_use, b.last_use, length));
  }
  return {};
}

Status ProgramVerifier::check_indices(const Launch& l) const {
  if (l.kind > LaunchKind::kRecv) return invalid_plan("unknown kind");
  if (l.kind != LaunchKind::kSubgraph && (l.subgraph != -1 || l.workspace != kNoBuffer)) {
    return invalid_plan("a launch that communicates names a subgraph or a workspace");
  }
  if (l.phase > Phase::kUpdate) return invalid_plan("unknown phase");
  if (l.segment < 0 || static_cast<size_t>(l.segment) >= plan_.segments.size()) {
    return invalid_plan(fmt::format("segment {} does not exist", l.segment));
  }
  if (l.lane < 0 || static_cast<size_t>(l.lane) >= program_.lanes.size()) {
    return invalid_plan(fmt::format("lane {} does not exist", l.lane));
  }
  std::unordered_set<BufferId> seen;
  for (const LaunchInput& input : l.inputs) {
    if (!is_buffer(input.buffer)) {
      return invalid_plan(fmt::format("input buffer {} does not exist", input.buffer));
    }
    if (!seen.insert(input.buffer).second) {
      return invalid_plan(fmt::format("buffer {} is bound to two inputs", input.buffer));
    }
    if (input.producer != kNoLaunch && !is_launch(input.producer)) {
      return invalid_plan(fmt::format("producer {} does not exist", input.producer));
    }
  }
  for (BufferId id : l.outputs) {
    if (!is_buffer(id)) return invalid_plan(fmt::format("output buffer {} does not exist", id));
  }
  if (l.workspace != kNoBuffer &&
      (!is_buffer(l.workspace) || buffer(l.workspace).kind != BufferKind::kWorkspace)) {
    return invalid_plan(fmt::format("buffer {} is no workspace", l.workspace));
  }
  return {};
}

Status ProgramVerifier::check_signature(const Launch& l) const {
  if (l.subgraph < 0 || static_cast<size_t>(l.subgraph) >= plan_.subgraphs.size()) {
    return invalid_plan(fmt::format("subgraph {} does not exist", l.subgraph));
  }
  const Subgraph& subgraph = plan_.subgraphs[static_cast<size_t>(l.subgraph)];
  const Graph& body = subgraph.body;
  if (l.inputs.size() != body.inputs().size() || l.outputs.size() != body.outputs().size()) {
    return invalid_plan(fmt::format("{} inputs and {} outputs, its subgraph has {} and {}",
                                    l.inputs.size(), l.outputs.size(), body.inputs().size(),
                                    body.outputs().size()));
  }
  const auto check = [&](BufferId id, ValueId value, Role role, std::string_view what, size_t i) {
    const Buffer& b = buffer(id);
    // A value that is reported and read again keeps its reported buffer.
    // What another rank accumulated arrives as an activation.
    const bool kind_fits =
        b.kind == buffer_kind(role) ||
        (role == Role::kActivation && b.kind == BufferKind::kMetric) ||
        (role == Role::kAccumulator && what == "input" && b.kind == BufferKind::kActivation);
    if (b.type == body.type(value) && kind_fits) return Status();
    return invalid_plan(fmt::format("{} {} is {} {}, buffer \"{}\" is {} {}", what, i,
                                    to_string(role), body.type(value).to_string(), b.name,
                                    to_string(b.kind), b.type.to_string()));
  };
  std::unordered_set<BufferId> bound;
  for (size_t i = 0; i < l.inputs.size(); ++i) {
    const GraphInput& input = body.inputs()[i];
    SGA_TRY(check(l.inputs[i].buffer, input.value, input.role, "input", i));
    bound.insert(l.inputs[i].buffer);
  }
  for (size_t j = 0; j < l.outputs.size(); ++j) {
    const GraphOutput& output = body.outputs()[j];
    SGA_TRY(check(l.outputs[j], output.value, output.role, "output", j));
    const int32_t alias = subgraph.alias_input[j];
    const bool fits = alias >= 0 ? l.outputs[j] == l.inputs[static_cast<size_t>(alias)].buffer
                                 : bound.insert(l.outputs[j]).second;
    if (!fits) {
      return invalid_plan(fmt::format("output {} is bound to buffer \"{}\" against its aliases", j,
                                      buffer(l.outputs[j]).name));
    }
  }
  return {};
}

Status ProgramVerifier::check_launch(const Launch& l) const {
  SGA_TRY(check_indices(l));
  return l.kind == LaunchKind::kSubgraph ? check_signature(l) : check_communication(l);
}

int64_t ProgramVerifier::num_members(int32_t group) const {
  const RankGroup& g = plan_.groups[static_cast<size_t>(group)];
  if (!g.coordinates.empty()) return static_cast<int64_t>(g.coordinates.size());
  return g.axis == MeshAxis::kPp   ? plan_.mesh.pp
         : g.axis == MeshAxis::kDp ? plan_.mesh.dp
                                   : plan_.mesh.tp;
}

Status ProgramVerifier::check_pair(const Launch& l, const TensorType& in,
                                   const TensorType& out) const {
  const auto error = [&] {
    return invalid_plan(
        fmt::format("{} goes in and {} comes out", in.to_string(), out.to_string()));
  };
  if (in.dtype != out.dtype) return error();
  const int64_t members = num_members(l.communication.group);
  const auto holds = [&](int64_t piece, int64_t size) {
    int64_t capacity = 0;
    return __builtin_mul_overflow(piece, members, &capacity) || capacity >= size;
  };
  bool fits = in.shape == out.shape;
  if (l.kind == LaunchKind::kAllGather) fits = holds(in.num_elements(), out.num_elements());
  if (l.kind == LaunchKind::kReduceScatter) fits = holds(out.num_elements(), in.num_elements());
  return fits ? Status() : error();
}

Status ProgramVerifier::check_communication(const Launch& l) const {
  const Communication& c = l.communication;
  if (c.group < 0 || static_cast<size_t>(c.group) >= plan_.groups.size()) {
    return invalid_plan(fmt::format("group {} does not exist", c.group));
  }
  const Lane& lane = program_.lanes[static_cast<size_t>(l.lane)];
  if (lane.kind != LaneKind::kCommunication || lane.group != c.group) {
    return invalid_plan(fmt::format("communicates in group \"{}\" on lane \"{}\"",
                                    plan_.groups[static_cast<size_t>(c.group)].name, lane.name));
  }
  if (c.key < 0 || c.reduction > Reduction::kMax || c.replay > ReplayKind::kResult) {
    return invalid_plan("no key, or an unknown reduction or kind of replay");
  }
  if (l.kind == LaunchKind::kSend || l.kind == LaunchKind::kRecv) {
    const bool one_sided = l.kind == LaunchKind::kSend ? l.outputs.empty() : l.inputs.empty();
    if (!one_sided || l.inputs.size() + l.outputs.size() == 0) {
      return invalid_plan("expected tensors to send or to receive, not both");
    }
    if (c.peer < 0 || c.peer >= plan_.mesh.num_ranks()) return invalid_plan("its peer is no rank");
    return {};
  }
  if (l.inputs.empty() || l.inputs.size() != l.outputs.size()) {
    return invalid_plan(fmt::format("{} inputs and {} outputs", l.inputs.size(), l.outputs.size()));
  }
  for (size_t i = 0; i < l.inputs.size(); ++i) {
    SGA_TRY(check_pair(l, buffer(l.inputs[i].buffer).type, buffer(l.outputs[i]).type));
  }
  return {};
}

Status ProgramVerifier::check_writer(const Buffer& b, LaunchId id) const {
  const Phase phase = launch(id).phase;
  switch (b.kind) {
    case BufferKind::kParameter:
    case BufferKind::kMoment:
      if (phase == Phase::kUpdate) return {};
      return invalid_plan("written before the commit");
    case BufferKind::kAccumulator:
      if (fires_per_micro_batch(phase)) return {};
      return invalid_plan("written after the micro-batches");
    case BufferKind::kScalar:
    case BufferKind::kBatch:
      return invalid_plan("written by a launch");
    case BufferKind::kMetric:
    case BufferKind::kActivation:
    case BufferKind::kWorkspace:
      break;
  }
  return {};
}

Status ProgramVerifier::collect_writers() {
  writers_.assign(program_.buffers.size(), {});
  std::vector<LaunchId> workspace_of(program_.buffers.size(), kNoLaunch);
  for (size_t i = 0; i < program_.launches.size(); ++i) {
    const auto id = static_cast<LaunchId>(i);
    const Launch& l = program_.launches[i];
    for (BufferId b : l.outputs) {
      const auto context = [&] {
        return fmt::format("buffer \"{}\", launch \"{}\"", buffer(b).name, l.name);
      };
      if (Status s = check_writer(buffer(b), id); !s.ok()) return s.with_context(context());
      auto& writers = writers_[static_cast<size_t>(b)];
      writers.push_back(id);
      if (writers.size() > 1 && buffer(b).kind != BufferKind::kAccumulator) {
        return invalid_plan("a second launch writes it").with_context(context());
      }
    }
    if (l.workspace == kNoBuffer) continue;
    LaunchId& owner = workspace_of[static_cast<size_t>(l.workspace)];
    if (owner != kNoLaunch) {
      return invalid_plan(
          fmt::format("launches \"{}\" and \"{}\" share a workspace", launch(owner).name, l.name));
    }
    owner = id;
  }
  return {};
}

Status ProgramVerifier::check_edge(LaunchId id, const LaunchInput& input) const {
  const Launch& l = launch(id);
  const Buffer& b = buffer(input.buffer);
  const auto& writers = writers_[static_cast<size_t>(input.buffer)];
  const bool writes =
      std::find(l.outputs.begin(), l.outputs.end(), input.buffer) != l.outputs.end();
  const bool repeats = fires_per_micro_batch(l.phase);
  EdgeKind expected = EdgeKind::kState;
  switch (b.kind) {
    case BufferKind::kParameter:
    case BufferKind::kMoment:
    case BufferKind::kScalar:
      break;
    case BufferKind::kBatch:
      expected = EdgeKind::kBatch;
      break;
    case BufferKind::kAccumulator:
      if (writes) break;
      if (repeats) return invalid_plan("an accumulator is read before the last micro-batch");
      expected = EdgeKind::kLastMicroBatch;
      break;
    case BufferKind::kMetric:
    case BufferKind::kActivation:
      expected = EdgeKind::kSameMicroBatch;
      break;
    case BufferKind::kWorkspace:
      return invalid_plan("a workspace is an input");
  }
  if (expected == EdgeKind::kSameMicroBatch && repeats && is_launch(input.producer) &&
      launch(input.producer).phase == Phase::kPrepare) {
    expected = EdgeKind::kPrepared;
  }
  if (input.edge != expected) return invalid_plan("wrong kind of edge");
  if (expected == EdgeKind::kState || expected == EdgeKind::kBatch) {
    return input.producer == kNoLaunch ? Status() : invalid_plan("unexpected producer");
  }
  if (input.producer == kNoLaunch ||
      std::find(writers.begin(), writers.end(), input.producer) == writers.end()) {
    return invalid_plan("its producer does not write it");
  }
  if (writes) return invalid_plan("updates in place what another launch produces");
  const bool producer_repeats = fires_per_micro_batch(launch(input.producer).phase);
  if (expected == EdgeKind::kSameMicroBatch && producer_repeats != repeats) {
    return invalid_plan("producer and reader do not fire alike");
  }
  return {};
}

Status ProgramVerifier::check_edges(LaunchId id) const {
  for (const LaunchInput& input : launch(id).inputs) {
    SGA_TRY(check_edge(id, input).with_context(
        fmt::format("launch \"{}\", input \"{}\"", launch(id).name, buffer(input.buffer).name)));
  }
  return {};
}

Status ProgramVerifier::check_firing_counts() const {
  int64_t expected = 0;
  for (size_t i = 0; i < program_.launches.size(); ++i) {
    expected += num_firings(static_cast<LaunchId>(i));
  }
  int64_t planned = 0;
  for (const Lane& lane : program_.lanes) planned += static_cast<int64_t>(lane.order.size());
  if (planned != expected) {
    return invalid_plan(
        fmt::format("{} firings in the lanes' orders, expected {}", planned, expected));
  }
  std::vector<std::vector<bool>> fired(program_.launches.size());
  for (size_t i = 0; i < fired.size(); ++i) {
    fired[i].resize(static_cast<size_t>(num_firings(static_cast<LaunchId>(i))));
  }
  for (size_t lane = 0; lane < program_.lanes.size(); ++lane) {
    for (const Firing& f : program_.lanes[lane].order) {
      if (!is_launch(f.launch) || f.micro_batch < 0 || f.micro_batch >= num_firings(f.launch)) {
        return invalid_plan(
            fmt::format("lane {}: no launch {} of micro-batch {}", lane, f.launch, f.micro_batch));
      }
      if (launch(f.launch).lane != static_cast<int32_t>(lane)) {
        return invalid_plan(
            fmt::format("launch \"{}\" fires on lane {}", launch(f.launch).name, lane));
      }
      auto flag = fired[static_cast<size_t>(f.launch)][static_cast<size_t>(f.micro_batch)];
      if (flag) {
        return invalid_plan(fmt::format("launch \"{}\" fires twice for micro-batch {}",
                                        launch(f.launch).name, f.micro_batch));
      }
      flag = true;
    }
  }
  return {};
}

bool ProgramVerifier::ready(const Firing& f) const {
  const Launch& l = launch(f.launch);
  // Micro-batches of one launch fire in order, so a count says which have fired.
  if (fired_[static_cast<size_t>(f.launch)] != f.micro_batch) return false;
  return std::all_of(l.inputs.begin(), l.inputs.end(), [&](const LaunchInput& input) {
    if (input.producer == kNoLaunch) return true;
    const auto writers = input.edge == EdgeKind::kLastMicroBatch
                             ? std::span(writers_[static_cast<size_t>(input.buffer)])
                             : std::span(&input.producer, 1);
    return std::all_of(writers.begin(), writers.end(), [&](LaunchId w) {
      const int64_t needed = input.edge == EdgeKind::kLastMicroBatch ? num_firings(w)
                             : input.edge == EdgeKind::kPrepared     ? 1
                                                                     : f.micro_batch + 1;
      return fired_[static_cast<size_t>(w)] >= needed;
    });
  });
}

Status ProgramVerifier::check_order() {
  fired_.assign(program_.launches.size(), 0);
  std::vector<size_t> next(program_.lanes.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t lane = 0; lane < program_.lanes.size(); ++lane) {
      const std::vector<Firing>& order = program_.lanes[lane].order;
      while (next[lane] < order.size() && ready(order[next[lane]]) &&
             (lane == 0 || order[next[lane]].start <= static_cast<int64_t>(next[0]))) {
        ++fired_[static_cast<size_t>(order[next[lane]].launch)];
        ++next[lane];
        moved = true;
      }
    }
  }
  for (size_t lane = 0; lane < program_.lanes.size(); ++lane) {
    if (next[lane] == program_.lanes[lane].order.size()) continue;
    const Firing& f = program_.lanes[lane].order[next[lane]];
    return invalid_plan(fmt::format(
        "lane {} cannot go on at position {}: launch \"{}\" of micro-batch {} waits for an input",
        lane, next[lane], launch(f.launch).name, f.micro_batch));
  }
  return {};
}

bool ProgramVerifier::has_program_order() const {
  return std::all_of(program_.lanes.begin() + 1, program_.lanes.end(),
                     [](const Lane& l) { return l.kind == LaneKind::kCommunication; });
}

Status ProgramVerifier::check_starts() const {
  const auto end = static_cast<int32_t>(program_.lanes[0].order.size());
  for (size_t i = 0; i < program_.lanes.size(); ++i) {
    int32_t last = 0;
    for (const Firing& f : program_.lanes[i].order) {
      if (f.start < last || f.start > end || (i == 0 && f.start != 0)) {
        return invalid_plan(fmt::format("lane {}: launch \"{}\" of micro-batch {} starts at {}", i,
                                        launch(f.launch).name, f.micro_batch, f.start));
      }
      last = f.start;
    }
  }
  return {};
}

/// Leases are granted in program order: it must be one in which the step can run, and each lane's
/// order a part of it.
Status ProgramVerifier::check_program_order() {
  fired_.assign(program_.launches.size(), 0);
  std::vector<int32_t> next(program_.lanes.size(), 0);
  for (const OrderedFiring& at : program_order(program_)) {
    const auto lane = static_cast<size_t>(at.lane);
    const Firing& f = program_.lanes[lane].order[static_cast<size_t>(at.position)];
    if (at.position != next[lane]++ || !ready(f)) {
      return invalid_plan(
          fmt::format("launch \"{}\" of micro-batch {} stands too early in the order of all lanes",
                      launch(f.launch).name, f.micro_batch));
    }
    ++fired_[static_cast<size_t>(f.launch)];
  }
  return {};
}

Status ProgramVerifier::note_updates(const Firing& f, std::vector<LaunchId>& updated) const {
  const Launch& l = launch(f.launch);
  for (const LaunchInput& input : l.inputs) {
    const LaunchId writer = updated[static_cast<size_t>(input.buffer)];
    if (writer != kNoLaunch) {
      return invalid_plan(fmt::format("launch \"{}\" reads \"{}\" after \"{}\" updated it", l.name,
                                      buffer(input.buffer).name, launch(writer).name));
    }
  }
  for (BufferId b : l.outputs) {
    const BufferKind kind = buffer(b).kind;
    if (kind == BufferKind::kParameter || kind == BufferKind::kMoment) {
      updated[static_cast<size_t>(b)] = f.launch;
    }
  }
  return {};
}

/// Updates come last on their lane, and nothing reads a parameter or moment that this step has
/// updated already.
Status ProgramVerifier::check_update_order() const {
  for (const Lane& lane : program_.lanes) {
    bool updating = false;
    std::vector<LaunchId> updated(program_.buffers.size(), kNoLaunch);
    for (const Firing& f : lane.order) {
      const Launch& l = launch(f.launch);
      if (updating && l.phase != Phase::kUpdate) {
        return invalid_plan("launch \"" + l.name + "\" fires after an update of its lane");
      }
      updating = l.phase == Phase::kUpdate;
      SGA_TRY(note_updates(f, updated));
    }
  }
  if (!has_program_order()) return {};
  std::vector<LaunchId> updated(program_.buffers.size(), kNoLaunch);
  for (const OrderedFiring& at : program_order(program_)) {
    SGA_TRY(note_updates(
        program_.lanes[static_cast<size_t>(at.lane)].order[static_cast<size_t>(at.position)],
        updated));
  }
  return {};
}

Status ProgramVerifier::run() {
  if (program_.num_micro_batches < 1) return invalid_plan("no micro-batch");
  if (program_.lanes.empty() || program_.lanes[0].kind != LaneKind::kCompute) {
    return invalid_plan("lane 0 is no compute lane");
  }
  if (program_.lanes.size() > kMaxLanes) return invalid_plan("too many lanes");
  for (const Lane& lane : program_.lanes) {
    if (lane.kind > LaneKind::kCommunication) return invalid_plan("a lane of unknown kind");
    if (lane.kind == LaneKind::kCommunication &&
        (lane.group < 0 || static_cast<size_t>(lane.group) >= plan_.groups.size())) {
      return invalid_plan(fmt::format("lane \"{}\" has no group", lane.name));
    }
  }
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& b = program_.buffers[i];
    SGA_TRY(check_buffer(b).with_context(fmt::format("buffer {} \"{}\"", i, b.name)));
  }
  for (size_t i = 0; i < program_.launches.size(); ++i) {
    const Launch& l = program_.launches[i];
    SGA_TRY(check_launch(l).with_context(fmt::format("launch {} \"{}\"", i, l.name)));
  }
  SGA_TRY(collect_writers());
  for (size_t i = 0; i < program_.launches.size(); ++i) {
    SGA_TRY(check_edges(static_cast<LaunchId>(i)));
  }
  SGA_TRY(check_firing_counts());
  SGA_TRY(check_starts());
  SGA_TRY(check_order());
  if (has_program_order()) SGA_TRY(check_program_order());
  return check_update_order();
}

}  // namespace

Status verify_program(const Plan& plan, const RankProgram& program) {
  return ProgramVerifier(plan, program).run();
}

std::vector<bool> prepared_buffers(const RankProgram& program) {
  std::vector<bool> prepared(program.buffers.size(), false);
  for (const Launch& l : program.launches) {
    for (const LaunchInput& input : l.inputs) {
      if (input.edge == EdgeKind::kPrepared) prepared[static_cast<size_t>(input.buffer)] = true;
    }
  }
  return prepared;
}

}  // namespace sgactor::graph
