#include "actors/core/schedule.h"

#include "graph/plan/program_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sgactor::actors {
namespace {

using graph::Buffer;
using graph::BufferId;
using graph::BufferKind;
using graph::EdgeKind;
using graph::Firing;
using graph::Launch;
using graph::LaunchId;

class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const graph::RankProgram& program) : program_(program) {}

  Result<Schedule> build() {
    out_.num_micro_batches = program_.num_micro_batches;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (program_.buffers[b].kind == BufferKind::kBatch) {
        out_.batch_buffers.push_back(static_cast<BufferId>(b));
      }
    }
    out_.batch_consumers.resize(out_.batch_buffers.size());
    out_.launches.resize(program_.launches.size());
    for (size_t l = 0; l < program_.launches.size(); ++l) prepare_launch(l);
    for (size_t l = 0; l < program_.launches.size(); ++l) {
      SGA_TRY(wire_inputs(static_cast<LaunchId>(l)));
    }
    for (size_t lane = 0; lane < program_.lanes.size(); ++lane) SGA_TRY(lay_lane(lane));
    for (size_t lane = 1; lane < program_.lanes.size(); ++lane) wire_gates(lane);
    number_items();
    return std::move(out_);
  }

 private:
  [[nodiscard]] const Buffer& buffer(BufferId b) const {
    return program_.buffers[static_cast<size_t>(b)];
  }
  [[nodiscard]] const Launch& launch(LaunchId l) const {
    return program_.launches[static_cast<size_t>(l)];
  }
  [[nodiscard]] LaunchWiring& wiring(LaunchId l) { return out_.launches[static_cast<size_t>(l)]; }
  [[nodiscard]] bool is_channel(int32_t lane) const {
    return program_.lanes[static_cast<size_t>(lane)].kind == graph::LaneKind::kCommunication;
  }

  void prepare_launch(size_t l) {
    const Launch& launch = program_.launches[l];
    LaunchWiring& wiring = out_.launches[l];
    const bool once =
        launch.phase != graph::Phase::kForward && launch.phase != graph::Phase::kBackward;
    wiring.lane = launch.lane;
    wiring.communicates = launch.kind != graph::LaunchKind::kSubgraph;
    wiring.num_firings = once ? 1 : program_.num_micro_batches;
    wiring.positions.assign(static_cast<size_t>(wiring.num_firings), -1);
    wiring.awaited_index.assign(launch.inputs.size(), -1);
    wiring.consumers.resize(launch.outputs.size());
    wiring.output_lease.assign(launch.outputs.size(), -1);
    wiring.output_alias.assign(launch.outputs.size(), -1);
    for (size_t j = 0; j < launch.outputs.size(); ++j) {
      if (graph::is_persistent(buffer(launch.outputs[j]).kind)) continue;
      const auto same = std::find_if(
          launch.inputs.begin(), launch.inputs.end(),
          [&](const graph::LaunchInput& in) { return in.buffer == launch.outputs[j]; });
      if (same != launch.inputs.end()) {
        wiring.output_alias[j] = static_cast<int32_t>(same - launch.inputs.begin());
      } else {
        wiring.output_lease[j] = wiring.num_leases++;
      }
    }
    wiring.has_workspace =
        launch.workspace != graph::kNoBuffer && buffer(launch.workspace).bytes > 0;
    if (wiring.has_workspace) ++wiring.num_leases;
  }

  /// `input` is the launch's own, or one more behind all there are.
  Consumer await(LaunchId l, int32_t input, EdgeKind edge) {
    LaunchWiring& w = wiring(l);
    if (static_cast<size_t>(input) == w.awaited_index.size()) w.awaited_index.push_back(-1);
    w.awaited_index[static_cast<size_t>(input)] = static_cast<int32_t>(w.awaited.size());
    w.awaited.push_back(input);
    return {l, input, edge, w.num_firings, w.communicates};
  }

  Status wire_inputs(LaunchId l) {
    const Launch& reader = launch(l);
    for (size_t i = 0; i < reader.inputs.size(); ++i) {
      const graph::LaunchInput& in = reader.inputs[i];
      if (in.edge == EdgeKind::kState) continue;
      const Consumer consumer = await(l, static_cast<int32_t>(i), in.edge);
      if (in.edge == EdgeKind::kBatch) {
        SGA_TRY(wire_batch(reader, in.buffer, consumer));
      } else {
        SGA_TRY(wire_producer(reader, in, consumer));
      }
    }
    for (size_t i = 0; i < reader.inputs.size(); ++i) wire_other_writers(l, reader.inputs[i]);
    return {};
  }

  Status wire_batch(const Launch& reader, BufferId b, const Consumer& consumer) {
    const auto it = std::find(out_.batch_buffers.begin(), out_.batch_buffers.end(), b);
    if (it == out_.batch_buffers.end()) {
      return invalid_plan(fmt::format("launch {}: input {} is fed but its buffer is no batch",
                                      reader.name, consumer.input));
    }
    if (consumer.on_completion) {
      return invalid_plan(fmt::format("launch {}: communicates what is fed", reader.name));
    }
    out_.batch_consumers[static_cast<size_t>(it - out_.batch_buffers.begin())].push_back(consumer);
    return {};
  }

  /// The handle of output `j` of `producer` goes to `consumer`.
  void connect(LaunchId producer, size_t j, const Consumer& consumer) {
    LaunchWiring& from = wiring(producer);
    from.consumers[j].push_back(consumer);
    if (consumer.on_completion) from.feeds_channel = true;
    if (!consumer.on_completion && !from.communicates &&
        from.lane != wiring(consumer.launch).lane) {
      from.feeds_other_lane = true;
    }
  }

  Status wire_producer(const Launch& reader, const graph::LaunchInput& in,
                       const Consumer& consumer) {
    if (in.producer < 0 || static_cast<size_t>(in.producer) >= program_.launches.size()) {
      return invalid_plan(
          fmt::format("launch {}: input {} has no producer", reader.name, consumer.input));
    }
    const Launch& producer = launch(in.producer);
    const auto it = std::find(producer.outputs.begin(), producer.outputs.end(), in.buffer);
    if (it == producer.outputs.end()) {
      return invalid_plan(fmt::format("launch {}: input {} is not an output of {}", reader.name,
                                      consumer.input, producer.name));
    }
    connect(in.producer, static_cast<size_t>(it - producer.outputs.begin()), consumer);
    return {};
  }

  /// What several launches write is there when the last has run. On their own lane its order says
  /// so; a reader on another lane, or of what channels write, waits for each of them.
  void wire_other_writers(LaunchId l, const graph::LaunchInput& in) {
    if (in.edge != EdgeKind::kLastMicroBatch) return;
    for (size_t other = 0; other < program_.launches.size(); ++other) {
      const auto id = static_cast<LaunchId>(other);
      if (id == in.producer || id == l) continue;
      const bool ordered = launch(id).lane == launch(l).lane && !wiring(id).communicates;
      const std::vector<BufferId>& outputs = launch(id).outputs;
      const auto it = std::find(outputs.begin(), outputs.end(), in.buffer);
      if (it == outputs.end() || ordered) continue;
      const auto input = static_cast<int32_t>(wiring(l).awaited_index.size());
      connect(id, static_cast<size_t>(it - outputs.begin()), await(l, input, in.edge));
    }
  }

  [[nodiscard]] SlotRef slot_of(BufferId b, int32_t micro_batch) const {
    return {b, micro_batch % buffer(b).num_slots};
  }

  void lay_feed(std::vector<LaneItem>& items, int32_t micro_batch) {
    LaneItem feed;
    feed.kind = ItemKind::kFeed;
    feed.micro_batch = micro_batch;
    for (BufferId b : out_.batch_buffers) feed.leases.push_back(slot_of(b, micro_batch));
    out_.feed_positions[static_cast<size_t>(micro_batch)] = static_cast<int32_t>(items.size());
    items.push_back(std::move(feed));
  }

  [[nodiscard]] static bool reads_batch(const Launch& launch) {
    return std::any_of(launch.inputs.begin(), launch.inputs.end(),
                       [](const auto& in) { return in.edge == EdgeKind::kBatch; });
  }

  Status lay_lane(size_t lane) {
    std::vector<LaneItem> items;
    if (lane == 0) {
      const bool fed = !out_.batch_buffers.empty();
      out_.feed_positions.assign(fed ? static_cast<size_t>(program_.num_micro_batches) : 1, -1);
      if (!fed) lay_feed(items, 0);
    }
    bool committed = false;
    for (const Firing& firing : program_.lanes[lane].order) {
      const Launch& what = launch(firing.launch);
      if (firing.micro_batch < 0 || firing.micro_batch >= wiring(firing.launch).num_firings) {
        return invalid_plan(fmt::format("launch {}: fires for micro-batch {} of {}", what.name,
                                        firing.micro_batch, wiring(firing.launch).num_firings));
      }
      if (lane == 0 && reads_batch(what) &&
          out_.feed_positions[static_cast<size_t>(firing.micro_batch)] < 0) {
        lay_feed(items, firing.micro_batch);
      }
      if (what.phase == graph::Phase::kUpdate && !committed) {
        items.push_back(marker(ItemKind::kCommit));
        committed = true;
        if (lane == 0) num_before_commit_ = static_cast<int32_t>(launched_at_.size());
      }
      if (lane == 0) {
        launched_at_.push_back(static_cast<int32_t>(items.size()));
      } else if (!committed && firing.start > num_before_commit_) {
        return invalid_plan(fmt::format(
            "launch {}: may start after an update, but the vote waits for it", what.name));
      }
      lay_launch(items, what, firing);
    }
    items.push_back(marker(ItemKind::kEnd));
    out_.lanes.push_back(std::move(items));
    return {};
  }

  [[nodiscard]] static LaneItem marker(ItemKind kind) {
    LaneItem item;
    item.kind = kind;
    return item;
  }

  void lay_launch(std::vector<LaneItem>& items, const Launch& what, const Firing& firing) {
    LaunchWiring& w = wiring(firing.launch);
    LaneItem item;
    item.launch = firing.launch;
    item.micro_batch = firing.micro_batch;
    for (size_t j = 0; j < what.outputs.size(); ++j) {
      if (w.output_lease[j] >= 0) {
        item.leases.push_back(slot_of(what.outputs[j], firing.micro_batch));
      }
    }
    if (w.has_workspace) item.leases.push_back(slot_of(what.workspace, firing.micro_batch));
    w.positions[static_cast<size_t>(firing.micro_batch)] = static_cast<int32_t>(items.size());
    items.push_back(std::move(item));
  }

  /// Item of lane 0 that is the `start`-th launched one.
  [[nodiscard]] int32_t position_of_start(int32_t start) const {
    if (start <= 0 || launched_at_.empty()) return -1;
    const auto index = std::min(static_cast<size_t>(start), launched_at_.size()) - 1;
    return launched_at_[index];
  }

  /// A feed stands right before the launch it stands before on lane 0.
  void number_items() {
    int64_t number = 0;
    for (const graph::OrderedFiring& at : graph::program_order(program_)) {
      const auto lane = static_cast<size_t>(at.lane);
      const Firing& firing = program_.lanes[lane].order[static_cast<size_t>(at.position)];
      const auto position = static_cast<size_t>(
          wiring(firing.launch).positions[static_cast<size_t>(firing.micro_batch)]);
      std::vector<LaneItem>& items = out_.lanes[lane];
      if (lane == 0 && position > 0 && items[position - 1].kind == ItemKind::kFeed) {
        items[position - 1].order = number++;
      }
      items[position].order = number++;
    }
  }

  /// Position on lane 0 that has been launched when the inputs of this execution are there.
  [[nodiscard]] int32_t implied(LaunchId l, int32_t micro_batch) {
    int32_t latest = -1;
    for (const graph::LaunchInput& in : launch(l).inputs) {
      if (in.producer == graph::kNoLaunch) continue;
      const LaunchWiring& from = wiring(in.producer);
      if (from.lane != 0) continue;
      const int32_t m = in.edge == EdgeKind::kSameMicroBatch && from.num_firings > 1 ? micro_batch
                        : in.edge == EdgeKind::kLastMicroBatch ? from.num_firings - 1
                                                               : 0;
      latest = std::max(latest, from.positions[static_cast<size_t>(m)]);
    }
    return latest;
  }

  void wire_gates(size_t lane) {
    std::vector<int32_t> inputs(program_.launches.size(), -1);
    for (const Firing& f : program_.lanes[lane].order) {
      int32_t& input = inputs[static_cast<size_t>(f.launch)];
      if (input >= 0 || position_of_start(f.start) <= implied(f.launch, f.micro_batch)) continue;
      input = static_cast<int32_t>(wiring(f.launch).awaited_index.size());
      static_cast<void>(await(f.launch, input, EdgeKind::kState));
    }
    for (const Firing& f : program_.lanes[lane].order) {
      const int32_t input = inputs[static_cast<size_t>(f.launch)];
      if (input < 0) continue;
      const Gate gate{f.launch, input, f.micro_batch};
      const int32_t at = position_of_start(f.start);
      if (at < 0) {
        out_.opens_at_begin.push_back(gate);
      } else {
        out_.lanes[0][static_cast<size_t>(at)].opens.push_back(gate);
      }
    }
  }

  const graph::RankProgram& program_;
  Schedule out_;
  std::vector<int32_t> launched_at_;  // lane 0: firing -> position
  int32_t num_before_commit_ = std::numeric_limits<int32_t>::max();
};

}  // namespace

Result<Schedule> build_schedule(const graph::Plan& plan, int32_t program) {
  if (program < 0 || static_cast<size_t>(program) >= plan.programs.size()) {
    return invalid_plan(fmt::format("there is no program {}", program));
  }
  return ScheduleBuilder(plan.programs[static_cast<size_t>(program)]).build();
}

}  // namespace sgactor::actors
