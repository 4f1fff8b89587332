#include "actors/core/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {
namespace {

using graph::Buffer;
using graph::BufferId;
using graph::BufferKind;
using graph::EdgeKind;
using graph::Launch;
using graph::LaunchId;

class ScheduleBuilder {
 public:
  ScheduleBuilder(const graph::Plan& plan, const graph::RankProgram& program)
      : plan_(plan), program_(program) {}

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
    return std::move(out_);
  }

 private:
  [[nodiscard]] const Buffer& buffer(BufferId b) const {
    return program_.buffers[static_cast<size_t>(b)];
  }

  void prepare_launch(size_t l) {
    const Launch& launch = program_.launches[l];
    LaunchWiring& wiring = out_.launches[l];
    const bool once =
        launch.phase != graph::Phase::kForward && launch.phase != graph::Phase::kBackward;
    wiring.lane = launch.lane;
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

  Status wire_inputs(LaunchId l) {
    const Launch& launch = program_.launches[static_cast<size_t>(l)];
    LaunchWiring& wiring = out_.launches[static_cast<size_t>(l)];
    for (size_t i = 0; i < launch.inputs.size(); ++i) {
      const graph::LaunchInput& in = launch.inputs[i];
      if (in.edge == EdgeKind::kState) continue;
      const Consumer consumer{l, static_cast<int32_t>(i), in.edge};
      wiring.awaited_index[i] = static_cast<int32_t>(wiring.awaited.size());
      wiring.awaited.push_back(static_cast<int32_t>(i));
      if (in.edge == EdgeKind::kBatch) {
        SGA_TRY(wire_batch(launch, in.buffer, consumer));
      } else {
        SGA_TRY(wire_producer(launch, in, consumer));
      }
    }
    return {};
  }

  Status wire_batch(const Launch& launch, BufferId b, const Consumer& consumer) {
    const auto it = std::find(out_.batch_buffers.begin(), out_.batch_buffers.end(), b);
    if (it == out_.batch_buffers.end()) {
      return invalid_plan(fmt::format("launch {}: input {} is fed but its buffer is no batch",
                                      launch.name, consumer.input));
    }
    out_.batch_consumers[static_cast<size_t>(it - out_.batch_buffers.begin())].push_back(consumer);
    return {};
  }

  Status wire_producer(const Launch& launch, const graph::LaunchInput& in,
                       const Consumer& consumer) {
    if (in.producer < 0 || static_cast<size_t>(in.producer) >= program_.launches.size()) {
      return invalid_plan(
          fmt::format("launch {}: input {} has no producer", launch.name, consumer.input));
    }
    const Launch& producer = program_.launches[static_cast<size_t>(in.producer)];
    LaunchWiring& from = out_.launches[static_cast<size_t>(in.producer)];
    const auto it = std::find(producer.outputs.begin(), producer.outputs.end(), in.buffer);
    if (it == producer.outputs.end()) {
      return invalid_plan(fmt::format("launch {}: input {} is not an output of {}", launch.name,
                                      consumer.input, producer.name));
    }
    from.consumers[static_cast<size_t>(it - producer.outputs.begin())].push_back(consumer);
    if (producer.lane == launch.lane) return {};
    from.feeds_other_lane = true;
    // The handle comes from `producer` alone: on another lane nothing else orders further writers.
    for (const Launch& other : program_.launches) {
      const bool writes =
          std::find(other.outputs.begin(), other.outputs.end(), in.buffer) != other.outputs.end();
      if (writes && other.name != producer.name) {
        return unsupported(fmt::format("launch {}: {} is written by {} and {} on another lane",
                                       launch.name, buffer(in.buffer).name, producer.name,
                                       other.name));
      }
    }
    return {};
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

  [[nodiscard]] bool reads_batch(const Launch& launch) const {
    return std::any_of(launch.inputs.begin(), launch.inputs.end(),
                       [](const auto& in) { return in.edge == EdgeKind::kBatch; });
  }

  Status lay_lane(size_t lane) {
    std::vector<LaneItem> items;
    if (lane == 0 && !out_.batch_buffers.empty()) {
      out_.feed_positions.assign(static_cast<size_t>(program_.num_micro_batches), -1);
    }
    bool committed = false;
    for (const graph::Firing& firing : program_.lanes[lane].order) {
      const Launch& launch = program_.launches[static_cast<size_t>(firing.launch)];
      LaunchWiring& wiring = out_.launches[static_cast<size_t>(firing.launch)];
      if (firing.micro_batch < 0 || firing.micro_batch >= wiring.num_firings) {
        return invalid_plan(fmt::format("launch {}: fires for micro-batch {} of {}", launch.name,
                                        firing.micro_batch, wiring.num_firings));
      }
      if (lane == 0 && reads_batch(launch) &&
          out_.feed_positions[static_cast<size_t>(firing.micro_batch)] < 0) {
        lay_feed(items, firing.micro_batch);
      }
      if (launch.phase == graph::Phase::kUpdate && !committed) {
        items.push_back({ItemKind::kCommit, graph::kNoLaunch, 0, {}});
        committed = true;
      }
      lay_launch(items, launch, wiring, firing);
    }
    items.push_back({ItemKind::kEnd, graph::kNoLaunch, 0, {}});
    out_.lanes.push_back(std::move(items));
    return {};
  }

  void lay_launch(std::vector<LaneItem>& items, const Launch& launch, LaunchWiring& wiring,
                  const graph::Firing& firing) const {
    LaneItem item{ItemKind::kLaunch, firing.launch, firing.micro_batch, {}};
    for (size_t j = 0; j < launch.outputs.size(); ++j) {
      if (wiring.output_lease[j] >= 0) {
        item.leases.push_back(slot_of(launch.outputs[j], firing.micro_batch));
      }
    }
    if (wiring.has_workspace) item.leases.push_back(slot_of(launch.workspace, firing.micro_batch));
    wiring.positions[static_cast<size_t>(firing.micro_batch)] = static_cast<int32_t>(items.size());
    items.push_back(std::move(item));
  }

  const graph::Plan& plan_;
  const graph::RankProgram& program_;
  Schedule out_;
};

}  // namespace

Result<Schedule> build_schedule(const graph::Plan& plan, int32_t program) {
  if (program < 0 || static_cast<size_t>(program) >= plan.programs.size()) {
    return invalid_plan(fmt::format("there is no program {}", program));
  }
  return ScheduleBuilder(plan, plan.programs[static_cast<size_t>(program)]).build();
}

}  // namespace sgactor::actors
