#include "graph/passes/split_stages.h"

#include "graph/passes/stage_order.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace sgactor::graph {
namespace {

using Stages = std::set<int32_t>;

/// What one stage hands another.
struct Transfer {
  int32_t from = 0;
  int32_t to = 0;
  LaunchId producer = kNoLaunch;
  bool summed = false;  ///< accumulators: once a step, behind the last micro-batch
  int32_t key = 0;
  std::vector<BufferId> buffers;  ///< of the whole program
};

/// Which launches of the whole program run where, and what travels.
class StagePlacement {
 public:
  StagePlacement(const Plan& plan, const PipelineOptions& options)
      : plan_(plan), whole_(plan.programs[0]), options_(options) {}

  Status run() {
    SGA_TRY(deal_segments());
    place_training();
    place_update();
    find_transfers();
    return {};
  }
  [[nodiscard]] bool runs_on(LaunchId l, int32_t stage) const {
    return stages_[static_cast<size_t>(l)].contains(stage);
  }
  /// Chunk of a segment, -1 if it has no forward.
  [[nodiscard]] int32_t chunk_of(int32_t segment) const {
    const auto found = chunk_.find(segment);
    return found == chunk_.end() ? -1 : found->second;
  }
  [[nodiscard]] const std::vector<Transfer>& transfers() const { return transfers_; }
  [[nodiscard]] const StageOrderOptions& order_options() const { return order_options_; }

 private:
  Status deal_segments();
  void place_training();
  void place_update();
  void find_transfers();
  [[nodiscard]] const Launch& launch(LaunchId id) const {
    return whole_.launches[static_cast<size_t>(id)];
  }
  [[nodiscard]] double cost(const Launch& l) const {
    if (l.subgraph < 0) return 0;
    const auto s = static_cast<size_t>(l.subgraph);
    return options_.subgraph_cost.empty() ? plan_.subgraphs[s].flops : options_.subgraph_cost[s];
  }
  [[nodiscard]] int32_t home(const Launch& l) const {
    const int32_t chunk = chunk_of(l.segment);
    return chunk < 0 ? 0 : chunk % options_.num_stages;
  }

  const Plan& plan_;
  const RankProgram& whole_;
  const PipelineOptions& options_;
  std::map<int32_t, int32_t> chunk_;  // by segment
  std::vector<Stages> stages_;        // by launch
  std::vector<Transfer> transfers_;
  StageOrderOptions order_options_;
};

Status StagePlacement::deal_segments() {
  std::map<int32_t, std::pair<double, double>> costs;  // by segment: forward, backward
  for (const Launch& l : whole_.launches) {
    if (l.phase == Phase::kForward) costs[l.segment].first += cost(l);
    if (l.phase == Phase::kBackward) costs[l.segment].second += cost(l);
  }
  const auto num_segments = static_cast<int32_t>(costs.size());
  if (num_segments < options_.num_stages) {
    return invalid_argument(
        fmt::format("{} pipeline stages for {} segments of the model; expected "
                    "{} or fewer",
                    options_.num_stages, num_segments, num_segments));
  }
  const int32_t num_chunks =
      std::min(options_.num_stages * std::max(options_.chunks_per_stage, 1), num_segments);
  std::vector<double> sums;
  for (const auto& [segment, cost] : costs) sums.push_back(cost.first + cost.second);
  const std::vector<int32_t> part = balance_parts(sums, num_chunks);
  order_options_.num_stages = options_.num_stages;
  order_options_.num_micro_batches = whole_.num_micro_batches;
  order_options_.schedule = options_.schedule;
  order_options_.forward_cost.assign(static_cast<size_t>(num_chunks), 1);
  order_options_.backward_cost.assign(static_cast<size_t>(num_chunks), 1);
  size_t i = 0;
  for (const auto& [segment, cost] : costs) {
    chunk_[segment] = part[i];
    order_options_.forward_cost[static_cast<size_t>(part[i])] += cost.first;
    order_options_.backward_cost[static_cast<size_t>(part[i])] += cost.second;
    ++i;
  }
  return {};
}

void StagePlacement::place_training() {
  stages_.resize(whole_.launches.size());
  for (size_t l = 0; l < whole_.launches.size(); ++l) {
    const Launch& launch = whole_.launches[l];
    if (!fires_per_micro_batch(launch.phase)) continue;
    stages_[l].insert(home(launch));
    for (const LaunchInput& input : launch.inputs) {
      if (input.edge != EdgeKind::kPrepared) continue;
      stages_[static_cast<size_t>(input.producer)].insert(home(launch));
    }
  }
}

void StagePlacement::place_update() {
  std::map<BufferId, Stages> readers;  // of parameters, in the training graph
  for (size_t l = 0; l < whole_.launches.size(); ++l) {
    if (whole_.launches[l].phase > Phase::kBackward) continue;
    for (const LaunchInput& input : whole_.launches[l].inputs) {
      if (whole_.buffers[static_cast<size_t>(input.buffer)].kind != BufferKind::kParameter)
        continue;
      readers[input.buffer].insert(stages_[l].begin(), stages_[l].end());
    }
  }
  for (size_t l = whole_.launches.size(); l-- > 0;) {
    const Launch& launch = whole_.launches[l];
    if (launch.phase <= Phase::kBackward) continue;
    if (chunk_of(launch.segment) < 0) {
      for (int32_t s = 0; s < options_.num_stages; ++s) stages_[l].insert(s);
    } else {
      stages_[l].insert(home(launch));
    }
    for (BufferId b : launch.outputs) {
      const auto found = readers.find(b);
      if (found != readers.end()) stages_[l].insert(found->second.begin(), found->second.end());
    }
    // What makes a sum that an update needs runs where the update runs; consumers come later in
    // the list, so they are placed already.
    for (const LaunchInput& input : launch.inputs) {
      if (input.producer == kNoLaunch) continue;
      const Launch& from = this->launch(input.producer);
      if (from.phase != Phase::kReduce || from.segment != launch.segment) continue;
      stages_[static_cast<size_t>(input.producer)].insert(stages_[l].begin(), stages_[l].end());
    }
  }
}

void StagePlacement::find_transfers() {
  std::map<std::tuple<LaunchId, int32_t, bool>, size_t> known;  // producer, to, summed
  auto key = static_cast<int32_t>(whole_.launches.size());
  for (size_t l = 0; l < whole_.launches.size(); ++l) {
    for (const int32_t to : stages_[l]) {
      for (const LaunchInput& input : whole_.launches[l].inputs) {
        if (input.producer == kNoLaunch || runs_on(input.producer, to)) continue;
        const bool summed = input.edge == EdgeKind::kLastMicroBatch;
        const auto [at, fresh] = known.try_emplace({input.producer, to, summed}, transfers_.size());
        if (fresh) {
          transfers_.push_back(
              {home(launch(input.producer)), to, input.producer, summed, key++, {}});
        }
        std::vector<BufferId>& buffers = transfers_[at->second].buffers;
        if (std::find(buffers.begin(), buffers.end(), input.buffer) == buffers.end()) {
          buffers.push_back(input.buffer);
        }
      }
    }
  }
}

/// Builds the program of one stage.
class StageBuilder {
 public:
  StageBuilder(const RankProgram& whole, const StagePlacement& placement, int32_t stage,
               int32_t group)
      : whole_(whole), placement_(placement), stage_(stage), group_(group) {
    out_.num_micro_batches = whole.num_micro_batches;
    out_.lanes.push_back({LaneKind::kCompute, "compute", -1, {}});
  }

  RankProgram build(const std::vector<StageTask>& tasks) {
    bool sums_sent = false;
    for (size_t l = 0; l < whole_.launches.size(); ++l) {
      const auto id = static_cast<LaunchId>(l);
      if (whole_.launches[l].phase > Phase::kBackward && !sums_sent) {
        sums_sent = true;
        for (const Transfer& t : placement_.transfers()) {
          if (t.summed && t.from == stage_) add_send(t);
        }
      }
      if (!placement_.runs_on(id, stage_)) continue;
      add_receives(id);
      add_launch(id);
      for (const Transfer& t : placement_.transfers()) {
        if (!t.summed && t.from == stage_ && t.producer == id) add_send(t);
      }
    }
    lay_order(tasks);
    return std::move(out_);
  }

 private:
  /// The stage's buffer for one of the whole program.
  BufferId local(BufferId b) {
    const auto [at, fresh] = buffer_.try_emplace(b, static_cast<BufferId>(out_.buffers.size()));
    if (fresh) out_.buffers.push_back(whole_.buffers[static_cast<size_t>(b)]);
    return at->second;
  }
  LaunchId push(Launch launch, int32_t chunk) {
    out_.launches.push_back(std::move(launch));
    chunk_.push_back(chunk);
    return static_cast<LaunchId>(out_.launches.size()) - 1;
  }
  [[nodiscard]] int32_t chunk_of(LaunchId l) const {
    return placement_.chunk_of(whole_.launches[static_cast<size_t>(l)].segment);
  }

  void add_launch(LaunchId id) {
    Launch launch = whole_.launches[static_cast<size_t>(id)];
    for (LaunchInput& input : launch.inputs) {
      const auto arrived = received_.find(input.buffer);
      if (input.producer != kNoLaunch && !placement_.runs_on(input.producer, stage_)) {
        input = {arrived->second.first, arrived->second.second, EdgeKind::kSameMicroBatch};
        continue;
      }
      input.buffer = local(input.buffer);
      if (input.producer != kNoLaunch) input.producer = launch_.at(input.producer);
    }
    for (BufferId& output : launch.outputs) output = local(output);
    if (launch.workspace != kNoBuffer) launch.workspace = local(launch.workspace);
    launch_[id] = push(std::move(launch), chunk_of(id));
  }

  Launch start_transfer(const Transfer& t, LaunchKind kind) {
    const Launch& from = whole_.launches[static_cast<size_t>(t.producer)];
    Launch launch;
    const bool sends = kind == LaunchKind::kSend;
    launch.name = fmt::format("{}.{}.{}{}", from.name, sends ? "send" : "recv",
                              sends ? t.to : t.from, t.summed ? ".sum" : "");
    launch.kind = kind;
    launch.segment = from.segment;
    launch.phase = t.summed ? Phase::kReduce : from.phase;
    launch.communication.group = group_;
    launch.communication.peer = sends ? t.to : t.from;
    launch.communication.key = t.key;
    launch.communication.replay = ReplayKind::kResult;
    return launch;
  }

  void add_send(const Transfer& t) {
    Launch launch = start_transfer(t, LaunchKind::kSend);
    for (BufferId b : t.buffers) {
      launch.inputs.push_back({local(b), launch_.at(t.producer),
                               t.summed ? EdgeKind::kLastMicroBatch : EdgeKind::kSameMicroBatch});
    }
    push(std::move(launch), chunk_of(t.producer));
  }

  /// What `reader` reads from elsewhere and no launch before it did.
  void add_receives(LaunchId reader) {
    const Launch& by = whole_.launches[static_cast<size_t>(reader)];
    for (const LaunchInput& input : by.inputs) {
      if (input.producer == kNoLaunch || placement_.runs_on(input.producer, stage_) ||
          received_.contains(input.buffer)) {
        continue;
      }
      for (const Transfer& t : placement_.transfers()) {
        const bool mine =
            t.to == stage_ && t.producer == input.producer &&
            std::find(t.buffers.begin(), t.buffers.end(), input.buffer) != t.buffers.end();
        if (mine) add_receive(t, by, chunk_of(reader));
      }
    }
  }
  void add_receive(const Transfer& t, const Launch& reader, int32_t chunk) {
    Launch launch = start_transfer(t, LaunchKind::kRecv);
    // It belongs to what needs it first: a backward may read what a forward elsewhere made.
    if (!t.summed) launch.phase = reader.phase;
    const auto id = static_cast<LaunchId>(out_.launches.size());
    for (BufferId b : t.buffers) {
      Buffer arrived = whole_.buffers[static_cast<size_t>(b)];
      arrived.name = "recv/" + arrived.name;
      arrived.kind = BufferKind::kActivation;
      arrived.num_slots = 1;
      const auto place = static_cast<BufferId>(out_.buffers.size());
      out_.buffers.push_back(std::move(arrived));
      launch.outputs.push_back(place);
      received_[b] = {place, id};
    }
    push(std::move(launch), chunk);
  }

  void lay_order(const std::vector<StageTask>& tasks) {
    std::vector<Firing>& order = out_.lanes[0].order;
    const auto add = [&](auto&& wanted, int32_t m) {
      for (size_t l = 0; l < out_.launches.size(); ++l) {
        if (wanted(l)) order.push_back({static_cast<LaunchId>(l), m, 0});
      }
    };
    add([&](size_t l) { return out_.launches[l].phase == Phase::kPrepare; }, 0);
    for (const StageTask& t : tasks) {
      const Phase phase = t.backward ? Phase::kBackward : Phase::kForward;
      add([&](size_t l) { return out_.launches[l].phase == phase && chunk_[l] == t.chunk; },
          t.micro_batch);
    }
    add([&](size_t l) { return out_.launches[l].phase == Phase::kReduce; }, 0);
    add([&](size_t l) { return out_.launches[l].phase == Phase::kUpdate; }, 0);
  }

  const RankProgram& whole_;
  const StagePlacement& placement_;
  int32_t stage_;
  int32_t group_;
  RankProgram out_;
  std::map<BufferId, BufferId> buffer_;
  std::map<LaunchId, LaunchId> launch_;
  std::map<BufferId, std::pair<BufferId, LaunchId>> received_;  // whole -> here, by which launch
  std::vector<int32_t> chunk_;                                  // by launch of this stage
};

}  // namespace

Status split_stages(Plan& plan, const PipelineOptions& options) {
  if (options.num_stages < 1 || options.chunks_per_stage < 1) {
    return invalid_argument(fmt::format("{} pipeline stages of {} chunks", options.num_stages,
                                        options.chunks_per_stage));
  }
  if (!options.subgraph_cost.empty() && options.subgraph_cost.size() != plan.subgraphs.size()) {
    return invalid_argument(fmt::format("{} costs of {} subgraphs", options.subgraph_cost.size(),
                                        plan.subgraphs.size()));
  }
  if (options.num_stages == 1) return {};
  if (plan.programs.size() != 1 || plan.programs[0].lanes.size() != 1) {
    return invalid_plan("stages are split before lanes are made");
  }
  StagePlacement placement(plan, options);
  SGA_TRY(placement.run());
  const auto group = static_cast<int32_t>(plan.groups.size());
  plan.groups.push_back({"pp", MeshAxis::kPp, {}});
  const std::vector<std::vector<StageTask>> tasks = order_stages(placement.order_options());
  std::vector<RankProgram> programs;
  for (int32_t s = 0; s < options.num_stages; ++s) {
    programs.push_back(
        StageBuilder(plan.programs[0], placement, s, group).build(tasks[static_cast<size_t>(s)]));
  }
  plan.programs = std::move(programs);
  return {};
}

void place_ranks(Plan& plan, MeshShape mesh) {
  plan.mesh = mesh;
  plan.ranks.clear();
  for (int32_t pp = 0; pp < mesh.pp; ++pp) {
    for (int32_t dp = 0; dp < mesh.dp; ++dp) {
      for (int32_t tp = 0; tp < mesh.tp; ++tp) {
        plan.ranks.push_back({pp, dp, tp, plan.programs.size() > 1 ? pp : 0});
      }
    }
  }
}

}  // namespace sgactor::graph
