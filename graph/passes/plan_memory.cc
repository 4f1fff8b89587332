#include "graph/passes/plan_memory.h"

#include "graph/base/units.h"
#include "graph/passes/plan_bodies.h"
#include "graph/passes/slot_ranges.h"
#include "graph/plan/program_order.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

class ArenaPlanner {
 public:
  ArenaPlanner(const std::vector<BodyMemory>& bodies, RankProgram& program, int64_t align_bytes)
      : bodies_(bodies), program_(program), align_bytes_(align_bytes) {}

  void run(MemoryReport* report);
  [[nodiscard]] MemoryStats stats() const;

 private:
  void size_workspaces();
  void place_fixed();
  void place_transient(MemoryReport* report);
  [[nodiscard]] int64_t lower_bound() const;
  using Uses = std::vector<std::vector<UseRange>>;
  [[nodiscard]] int64_t launch_peak(const Firing& firing, int32_t place, int64_t live,
                                    const Uses& uses) const;
  [[nodiscard]] int64_t slot_bytes(const Buffer& b) const {
    return round_up(b.bytes, align_bytes_);
  }
  [[nodiscard]] const Buffer& buffer(BufferId id) const {
    return program_.buffers[static_cast<size_t>(id)];
  }
  [[nodiscard]] const BodyMemory& body(const Launch& launch) const {
    return bodies_[static_cast<size_t>(launch.subgraph)];
  }
  static bool is_fixed(BufferKind kind) {
    return is_persistent(kind) || kind == BufferKind::kBatch;
  }

  const std::vector<BodyMemory>& bodies_;
  RankProgram& program_;
  int64_t align_bytes_;
  int64_t persistent_bytes_ = 0;
  int64_t fixed_bytes_ = 0;  // with the batch
};

void ArenaPlanner::size_workspaces() {
  for (const Launch& l : program_.launches) {
    if (l.workspace == kNoBuffer || l.kind != LaunchKind::kSubgraph) continue;
    Buffer& workspace = program_.buffers[static_cast<size_t>(l.workspace)];
    workspace.bytes = body(l).workspace_bytes;
    workspace.type = {DType::kU8, Shape{workspace.bytes}};
  }
}

void ArenaPlanner::place_fixed() {
  for (const bool persistent : {true, false}) {
    for (Buffer& b : program_.buffers) {
      if (!is_fixed(b.kind) || is_persistent(b.kind) != persistent) continue;
      b.offsets.clear();
      for (int32_t slot = 0; slot < b.num_slots; ++slot) {
        b.offsets.push_back(fixed_bytes_);
        fixed_bytes_ += slot_bytes(b);
      }
    }
    if (persistent) persistent_bytes_ = fixed_bytes_;
  }
}

void ArenaPlanner::place_transient(MemoryReport* report) {
  std::vector<LiveRange> ranges;
  const auto overlaps = [](const Buffer& b) { return !is_fixed(b.kind) && b.num_slots > 1; };
  if (program_.lanes.size() > 1 ||
      std::any_of(program_.buffers.begin(), program_.buffers.end(), overlaps)) {
    std::vector<std::vector<LiveRange>> by_buffer = slot_ranges(program_);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (is_fixed(program_.buffers[b].kind)) continue;
      for (LiveRange& range : by_buffer[b]) ranges.push_back(std::move(range));
    }
  } else {
    for (const Buffer& b : program_.buffers) {
      if (!is_fixed(b.kind)) ranges.push_back({b.bytes, b.first_use, b.last_use});
    }
  }
  const Packing packing =
      pack_ranges(ranges, align_bytes_, report == nullptr ? nullptr : &report->packers);
  if (report != nullptr) {
    report->num_ranges = static_cast<int64_t>(ranges.size());
    report->live_bytes = live_lower_bound(ranges, align_bytes_);
  }
  size_t next = 0;
  for (Buffer& b : program_.buffers) {
    if (is_fixed(b.kind)) continue;
    b.offsets.clear();
    for (int32_t slot = 0; slot < b.num_slots; ++slot) {
      b.offsets.push_back(fixed_bytes_ + packing.offsets[next++]);
    }
  }
  program_.arena_bytes = fixed_bytes_ + packing.total_bytes;
}

/// Most bytes live during one firing: `live` is what activations take at its place. Inputs that die
/// here need their bytes only up to the last op that reads them, outputs that are born here only
/// from the op that makes them.
int64_t ArenaPlanner::launch_peak(const Firing& firing, int32_t place, int64_t live,
                                  const Uses& uses) const {
  const Launch& launch = program_.launches[static_cast<size_t>(firing.launch)];
  const BodyMemory& memory = body(launch);
  int32_t num_ops = 1;
  for (const StorageClass& c : memory.classes)
    num_ops = std::max(num_ops, std::max(c.first, c.last) + 1);
  std::vector<int64_t> change(static_cast<size_t>(num_ops) + 1, 0);
  const auto add = [&](int64_t bytes, int32_t first, int32_t last) {
    change[static_cast<size_t>(std::max(first, 0))] += bytes;
    change[static_cast<size_t>(std::max({first, last, 0})) + 1] -= bytes;
  };
  for (const StorageClass& c : memory.classes) {
    if (c.input < 0 && c.output < 0) {
      add(c.bytes, c.first, c.last);
      continue;
    }
    const BufferId id = c.output >= 0 ? launch.outputs[static_cast<size_t>(c.output)]
                                      : launch.inputs[static_cast<size_t>(c.input)].buffer;
    const Buffer& b = buffer(id);
    if (b.kind != BufferKind::kActivation) continue;
    const std::vector<UseRange>& all = uses[static_cast<size_t>(id)];
    const UseRange& own = all[static_cast<size_t>(firing.micro_batch)];
    const UseRange& use = own.first >= 0 ? own : all[0];
    const bool born = c.output >= 0 && c.input < 0 && use.first == place;
    const bool dies = c.input >= 0 && c.output < 0 && use.second == place;
    if (!born && !dies) continue;
    live -= slot_bytes(b);
    add(slot_bytes(b), c.first, born ? num_ops - 1 : c.last);
  }
  int64_t inner = 0;
  int64_t most = 0;
  for (int64_t bytes : change) {
    inner += bytes;
    most = std::max(most, inner);
  }
  return live + most;
}

int64_t ArenaPlanner::lower_bound() const {
  // Without slack: how much later than its start a communication counts as done is a choice.
  const Uses uses = micro_batch_ranges(program_, 0);
  const std::vector<OrderedFiring> order = program_order(program_);
  std::vector<int64_t> change(order.size() + 1, 0);
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& b = program_.buffers[i];
    if (b.kind == BufferKind::kWorkspace) continue;
    for (const UseRange& use : uses[i]) {
      if (use.first < 0) continue;
      change[static_cast<size_t>(use.first)] += slot_bytes(b);
      change[static_cast<size_t>(use.second) + 1] -= slot_bytes(b);
    }
  }
  int64_t live = 0;
  int64_t most = 0;
  for (size_t place = 0; place < order.size(); ++place) {
    live += change[place];
    const Firing& f = program_.lanes[static_cast<size_t>(order[place].lane)]
                          .order[static_cast<size_t>(order[place].position)];
    if (program_.launches[static_cast<size_t>(f.launch)].kind != LaunchKind::kSubgraph) continue;
    most = std::max(most, launch_peak(f, static_cast<int32_t>(place), live, uses));
  }
  return fixed_bytes_ + most;
}

MemoryStats ArenaPlanner::stats() const {
  MemoryStats m;
  for (const Buffer& b : program_.buffers) {
    if (b.kind != BufferKind::kWorkspace) m.naive_bytes += slot_bytes(b);
    if (b.kind == BufferKind::kParameter) m.parameter_bytes += b.bytes;
    if (b.kind == BufferKind::kMoment) m.moment_bytes += b.bytes;
    if (b.kind == BufferKind::kAccumulator) m.accumulator_bytes += b.bytes;
  }
  for (const Launch& l : program_.launches) {
    if (l.kind == LaunchKind::kSubgraph) m.naive_bytes += body(l).naive_bytes;
  }
  m.planned_bytes = program_.arena_bytes;
  m.lower_bound_bytes = lower_bound();
  m.activation_peak_bytes = program_.arena_bytes - persistent_bytes_;
  return m;
}

void ArenaPlanner::run(MemoryReport* report) {
  size_workspaces();
  place_fixed();
  place_transient(report);
}

}  // namespace

Status plan_memory(Plan& plan, int64_t align_bytes, MemoryReport* report, int64_t head_room_bytes) {
  if (align_bytes < kMinAlignBytes || align_bytes % kMinAlignBytes != 0) {
    return invalid_argument(fmt::format("alignment of {} bytes, expected a multiple of {}",
                                        align_bytes, kMinAlignBytes));
  }
  Plan planned = plan;
  std::vector<BodyMemory> bodies;
  for (Subgraph& subgraph : planned.subgraphs) {
    Result<BodyMemory> memory = plan_body(subgraph, plan.storage, align_bytes, head_room_bytes);
    if (!memory.ok()) return memory.status().with_context("subgraph \"" + subgraph.name + "\"");
    subgraph.places = memory->places;
    subgraph.workspace_bytes = memory->workspace_bytes;
    bodies.push_back(std::move(memory).value());
  }
  for (size_t i = 0; i < planned.programs.size(); ++i) {
    ArenaPlanner planner(bodies, planned.programs[i], align_bytes);
    planner.run(i == 0 ? report : nullptr);
    if (i == 0) planned.memory = planner.stats();
  }
  plan = std::move(planned);
  return {};
}

}  // namespace sgactor::graph
