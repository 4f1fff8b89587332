#include "graph/passes/schedule_collectives.h"

#include "graph/passes/bucket_collectives.h"
#include "graph/plan/program_order.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace sgactor::graph {
namespace {

constexpr int32_t kMostPeerLanes = 16;  // stages; more share lanes for what is sent once a step

class LaneScheduler {
 public:
  LaneScheduler(const Plan& plan, RankProgram& program, const ScheduleOptions& options)
      : plan_(plan), program_(program), options_(options) {}

  void run() {
    serial_ = std::move(program_.lanes[0].order);
    program_.lanes.resize(1);
    program_.lanes[0].order.clear();
    place_computing();
    for (const Firing& f : serial_) {
      if (launch(f.launch).kind != LaunchKind::kSubgraph) place_communication(f);
    }
    for (size_t lane = 1; lane < program_.lanes.size(); ++lane) {
      auto& order = program_.lanes[lane].order;
      std::stable_sort(order.begin(), order.end(), [](const Firing& a, const Firing& b) {
        return std::tie(a.start, a.micro_batch, a.launch) <
               std::tie(b.start, b.micro_batch, b.launch);
      });
    }
  }

 private:
  using Key = std::pair<LaunchId, int32_t>;  // launch and micro-batch

  [[nodiscard]] const Launch& launch(LaunchId id) const {
    return program_.launches[static_cast<size_t>(id)];
  }
  /// Lane 0 keeps what computes; each firing's number of firings of lane 0 before it is noted.
  void place_computing() {
    int32_t computed = 0;
    for (const Firing& f : serial_) {
      before_[{f.launch, f.micro_batch}] = computed;
      if (launch(f.launch).kind != LaunchKind::kSubgraph) continue;
      program_.lanes[0].order.push_back({f.launch, f.micro_batch, 0});
      ++computed;
    }
  }
  void place_communication(Firing f) {
    Launch& l = program_.launches[static_cast<size_t>(f.launch)];
    const int32_t ready = ready_at(l, f.micro_batch);
    const int32_t wanted = before_.at({f.launch, f.micro_batch});
    // What only waits for state could start at once, and would hold its result all the time.
    const bool early = l.kind == LaunchKind::kAllGather || l.kind == LaunchKind::kRecv;
    f.start = early ? std::max(ready, wanted - options_.prefetch) : ready;
    start_[{f.launch, f.micro_batch}] = f.start;
    l.lane = lane_of(l);
    program_.lanes[static_cast<size_t>(l.lane)].order.push_back(f);
  }
  /// Firings of lane 0 after which all inputs are on their way.
  [[nodiscard]] int32_t ready_at(const Launch& l, int32_t micro_batch) const {
    int32_t ready = 0;
    for (const LaunchInput& input : l.inputs) {
      if (input.producer == kNoLaunch) continue;
      if (input.edge == EdgeKind::kLastMicroBatch) {
        for (size_t w = 0; w < program_.launches.size(); ++w) {
          const auto& outputs = program_.launches[w].outputs;
          if (std::find(outputs.begin(), outputs.end(), input.buffer) == outputs.end()) continue;
          const bool repeats = fires_per_micro_batch(program_.launches[w].phase);
          ready = std::max(ready, done_at(static_cast<LaunchId>(w),
                                          repeats ? program_.num_micro_batches - 1 : 0));
        }
        continue;
      }
      ready = std::max(
          ready, done_at(input.producer, input.edge == EdgeKind::kPrepared ? 0 : micro_batch));
    }
    return ready;
  }
  [[nodiscard]] int32_t done_at(LaunchId id, int32_t micro_batch) const {
    if (launch(id).kind == LaunchKind::kSubgraph) return before_.at({id, micro_batch}) + 1;
    // Posted early, it is there no sooner than the other stage sends it: whoever waits for it keeps
    // its place, and does not stand in front of what the other stage waits for.
    if (launch(id).kind == LaunchKind::kRecv) return before_.at({id, micro_batch});
    return start_.at({id, micro_batch});
  }
  /// What stages tell each other once a step goes from each to every other: of many stages it would
  /// take too many lanes.
  [[nodiscard]] bool shares_lane(const Launch& l) const {
    return plan_.mesh.pp > kMostPeerLanes && l.phase > Phase::kBackward;
  }
  int32_t lane_of(const Launch& l) {
    const Communication& c = l.communication;
    const std::string& group = plan_.groups[static_cast<size_t>(c.group)].name;
    std::string name;
    switch (l.kind) {
      case LaunchKind::kAllGather:
        // The gradient norm's gather waits for the sums: it goes with them.
        name = group + (l.phase == Phase::kReduce ? ".reduce" : ".gather");
        break;
      case LaunchKind::kSend:
        name = shares_lane(l) ? group + ".send.sums" : fmt::format("{}.send.{}", group, c.peer);
        break;
      case LaunchKind::kRecv:
        name = shares_lane(l) ? group + ".recv.sums" : fmt::format("{}.recv.{}", group, c.peer);
        break;
      default:
        name = group + ".reduce";
    }
    for (size_t lane = 1; lane < program_.lanes.size(); ++lane) {
      if (program_.lanes[lane].name == name) return static_cast<int32_t>(lane);
    }
    program_.lanes.push_back({LaneKind::kCommunication, name, c.group, {}});
    return static_cast<int32_t>(program_.lanes.size()) - 1;
  }

  const Plan& plan_;
  RankProgram& program_;
  const ScheduleOptions& options_;
  std::vector<Firing> serial_;
  std::map<Key, int32_t> before_;
  std::map<Key, int32_t> start_;  // of communication
};

struct Span {
  int32_t first = -1, last = -1;
};

/// The feeder fills all batch buffers of a micro-batch at once, for whoever reads one of them
/// first: targets lie there as long as tokens do, also where a stage embeds long before its head
/// runs.
void join_batch_spans(const RankProgram& program, std::vector<std::vector<Span>>& spans) {
  std::vector<Span> all(static_cast<size_t>(program.num_micro_batches));
  const auto is_batch = [&](size_t b) {
    return program.buffers[b].kind == BufferKind::kBatch && !spans[b].empty();
  };
  for (size_t b = 0; b < spans.size(); ++b) {
    for (size_t m = 0; is_batch(b) && m < all.size(); ++m) {
      const Span& span = spans[b][m];
      if (span.first < 0) continue;
      all[m].first = all[m].first < 0 ? span.first : std::min(all[m].first, span.first);
      all[m].last = std::max(all[m].last, span.last);
    }
  }
  for (size_t b = 0; b < spans.size(); ++b) {
    if (is_batch(b)) spans[b] = all;
  }
}

/// Most of these that lie over one place.
int32_t most_at_once(const std::vector<Span>& spans) {
  std::vector<int32_t> firsts;
  std::vector<int32_t> lasts;
  for (const Span& span : spans) {
    if (span.first < 0) continue;
    firsts.push_back(span.first);
    lasts.push_back(span.last);
  }
  std::sort(firsts.begin(), firsts.end());
  std::sort(lasts.begin(), lasts.end());
  size_t ended = 0;
  size_t most = 0;
  for (size_t begun = 1; begun <= firsts.size(); ++begun) {
    while (lasts[ended] < firsts[begun - 1]) ++ended;
    most = std::max(most, begun - ended);
  }
  return static_cast<int32_t>(most);
}

/// Slots for the most micro-batches of one buffer that hold something at one time, in program
/// order.
void size_slots(RankProgram& program) {
  const std::vector<bool> prepared = prepared_buffers(program);
  std::vector<std::vector<Span>> spans(program.buffers.size());
  for_each_touch(program, [&](BufferId id, const Firing& f, int32_t index, bool) {
    const Buffer& b = program.buffers[static_cast<size_t>(id)];
    if (is_persistent(b.kind) || prepared[static_cast<size_t>(id)]) return;
    auto& list = spans[static_cast<size_t>(id)];
    if (list.empty()) list.resize(static_cast<size_t>(program.num_micro_batches));
    Span& span = list[static_cast<size_t>(f.micro_batch)];
    if (span.first < 0) span.first = index;
    span.last = index;
  });
  join_batch_spans(program, spans);
  for (size_t b = 0; b < spans.size(); ++b) {
    const int32_t most = std::max(1, most_at_once(spans[b]));
    Buffer& buffer = program.buffers[b];
    const int32_t batches = program.num_micro_batches;
    if (buffer.kind == BufferKind::kBatch) {
      buffer.num_slots = std::min(std::max(buffer.num_slots, most + 1), batches);
    } else if (!is_persistent(buffer.kind)) {
      buffer.num_slots = most;
    }
  }
}

/// A prepared tensor is there before the first micro-batch and until the last.
void extend_prepared(RankProgram& program) {
  const std::vector<bool> prepared = prepared_buffers(program);
  for (size_t b = 0; b < prepared.size(); ++b) {
    if (!prepared[b]) continue;
    program.buffers[b].first_use = 0;
    program.buffers[b].last_use =
        std::max(static_cast<int32_t>(program.lanes[0].order.size()) - 1, 0);
  }
}

}  // namespace

void assign_live_ranges(RankProgram& program) {
  const auto end = static_cast<int32_t>(program.lanes[0].order.size());
  std::vector<bool> touched(program.buffers.size(), false);
  const auto touch = [&](BufferId id, int32_t position) {
    const auto i = static_cast<size_t>(id);
    Buffer& b = program.buffers[i];
    if (!touched[i]) b.first_use = position;
    touched[i] = true;
    b.last_use = std::max(position, b.last_use);
  };
  for (Buffer& b : program.buffers) b.first_use = b.last_use = 0;
  for (const OrderedFiring& at : program_order(program)) {
    const Firing& f =
        program.lanes[static_cast<size_t>(at.lane)].order[static_cast<size_t>(at.position)];
    if (f.micro_batch != 0) continue;
    const int32_t position =
        at.lane == 0 ? at.position : std::clamp(f.start - 1, 0, std::max(end - 1, 0));
    const Launch& l = program.launches[static_cast<size_t>(f.launch)];
    for (const LaunchInput& input : l.inputs) touch(input.buffer, position);
    for (BufferId output : l.outputs) touch(output, position);
    if (l.workspace != kNoBuffer) touch(l.workspace, position);
  }
  for (Buffer& b : program.buffers) {
    if (!is_persistent(b.kind) && b.kind != BufferKind::kBatch) continue;
    b.first_use = 0;
    b.last_use = std::max(end - 1, 0);
  }
  extend_prepared(program);
}

void lay_lanes(Plan& plan, const ScheduleOptions& options) {
  if (plan.groups.empty()) return;
  if (options.bucket_bytes > 0) bucket_collectives(plan, options.bucket_bytes);
  for (RankProgram& program : plan.programs) LaneScheduler(plan, program, options).run();
}

Status schedule_collectives(Plan& plan, const ScheduleOptions& options) {
  if (plan.groups.empty()) return {};
  lay_lanes(plan, options);
  for (RankProgram& program : plan.programs) {
    size_slots(program);
    assign_live_ranges(program);
  }
  return verify_structure(plan);
}

}  // namespace sgactor::graph
