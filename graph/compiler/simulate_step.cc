#include "graph/compiler/simulate_step.h"

#include "graph/base/json_text.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr double kLaunchSeconds = 3e-6;  // from one launch to the next of a lane

/// Lower bound of a ring (Patarasuk and Yuan, 2009); `bytes` is the whole tensor.
double ring_gather_s(const LinkSpec& link, int32_t members, double bytes) {
  if (members <= 1) return 0;
  const double n = members;
  return (bytes * (n - 1) / n / link.bytes_per_s) + (link.latency_s * (n - 1));
}

/// Runs the stages side by side: always the firing that can start first.
class StepSimulation {
 public:
  StepSimulation(const Plan& plan, const ClusterSpec& cluster) : plan_(plan), cluster_(cluster) {
    for (size_t h = 0; h < cluster.hosts.size(); ++h) {
      host_of_.insert(host_of_.end(), cluster.hosts[h].devices.size(), h);
      devices_.insert(devices_.end(), cluster.hosts[h].devices.begin(),
                      cluster.hosts[h].devices.end());
    }
  }

  SimulatedStep run() {
    for (int32_t pp = 0; pp < plan_.mesh.pp; ++pp) add_stage(pp);
    while (true) {
      Choice best;
      for (size_t s = 0; s < stages_.size(); ++s) {
        for (size_t lane = 0; lane < stages_[s].next.size(); ++lane) consider(s, lane, best);
      }
      if (best.stage < 0) break;
      fire(best);
    }
    return summarize();
  }

 private:
  struct Stage {
    int32_t rank = 0;
    const RankProgram* program = nullptr;
    std::vector<size_t> next;                             // by lane
    std::vector<double> free_at;                          // by lane
    std::vector<double> started;                          // lane 0's firings
    std::map<std::pair<LaunchId, int32_t>, double> ends;  // by launch and micro-batch
    std::vector<int32_t> num_ended;                       // by launch
    std::vector<double> last_end;                         // by launch
    std::vector<std::vector<LaunchId>> writers;           // by buffer
    double host_link_free = 0, network_link_free = 0;
    std::vector<TimedFiring> firings;
  };
  struct Choice {
    int32_t stage = -1;
    size_t lane = 0;
    double start = std::numeric_limits<double>::infinity();
  };

  void add_stage(int32_t pp) {
    Stage s;
    s.rank = rank_at(plan_, pp, 0, 0);
    const int32_t program = plan_.ranks[static_cast<size_t>(s.rank)].program;
    s.program = &plan_.programs[static_cast<size_t>(program)];
    s.next.assign(s.program->lanes.size(), 0);
    s.free_at.assign(s.program->lanes.size(), 0);
    s.num_ended.assign(s.program->launches.size(), 0);
    s.last_end.assign(s.program->launches.size(), 0);
    s.writers.resize(s.program->buffers.size());
    for (size_t l = 0; l < s.program->launches.size(); ++l) {
      for (BufferId b : s.program->launches[l].outputs) {
        s.writers[static_cast<size_t>(b)].push_back(static_cast<LaunchId>(l));
      }
    }
    stages_.push_back(std::move(s));
  }

  [[nodiscard]] static const Launch& launch_of(const Stage& s, const Firing& f) {
    return s.program->launches[static_cast<size_t>(f.launch)];
  }

  /// When all inputs are there; nothing while one of them has no end yet.
  static std::optional<double> ready_at(const Stage& s, const Firing& f) {
    double ready = 0;
    for (const LaunchInput& input : launch_of(s, f).inputs) {
      if (input.producer == kNoLaunch) continue;
      if (input.edge == EdgeKind::kLastMicroBatch) {
        for (LaunchId w : s.writers[static_cast<size_t>(input.buffer)]) {
          const bool repeats =
              fires_per_micro_batch(s.program->launches[static_cast<size_t>(w)].phase);
          const int32_t needed = repeats ? s.program->num_micro_batches : 1;
          if (s.num_ended[static_cast<size_t>(w)] < needed) return std::nullopt;
          ready = std::max(ready, s.last_end[static_cast<size_t>(w)]);
        }
        continue;
      }
      const int32_t m = input.edge == EdgeKind::kPrepared ? 0 : f.micro_batch;
      const auto end = s.ends.find({input.producer, m});
      if (end == s.ends.end()) return std::nullopt;
      ready = std::max(ready, end->second);
    }
    return ready;
  }

  /// Do all members of the group sit on one host?
  [[nodiscard]] bool on_one_host(const Stage& s, const Communication& c) const {
    std::set<size_t> hosts;
    for (int32_t r : group_members(plan_, c.group, s.rank)) {
      hosts.insert(host_of_[static_cast<size_t>(r)]);
    }
    return hosts.size() == 1;
  }
  [[nodiscard]] double seconds(const Stage& s, const Launch& l) const {
    if (l.kind == LaunchKind::kSubgraph) {
      const Subgraph& body = plan_.subgraphs[static_cast<size_t>(l.subgraph)];
      const DeviceSpec& d = devices_[static_cast<size_t>(s.rank)];
      return kLaunchSeconds +
             std::max(body.flops / d.flops_per_s,
                      static_cast<double>(body.bytes_moved) / d.memory_bytes_per_s);
    }
    double bytes = 0;
    const auto add = [&](BufferId b) {
      bytes += static_cast<double>(s.program->buffers[static_cast<size_t>(b)].type.bytes());
    };
    if (l.kind == LaunchKind::kAllGather || l.kind == LaunchKind::kRecv) {
      for (BufferId b : l.outputs) add(b);
    } else {
      for (const LaunchInput& in : l.inputs) add(in.buffer);
    }
    const Communication& c = l.communication;
    const LinkSpec& link = on_one_host(s, c)
                               ? cluster_.hosts[host_of_[static_cast<size_t>(s.rank)]].link
                               : cluster_.network;
    if (l.kind == LaunchKind::kSend) return 0;  // the receive counts
    if (l.kind == LaunchKind::kRecv) return link.latency_s + (bytes / link.bytes_per_s);
    const auto members = static_cast<int32_t>(group_members(plan_, c.group, s.rank).size());
    const double once = ring_gather_s(link, members, bytes);
    return l.kind == LaunchKind::kAllReduce ? 2 * once : once;
  }

  void consider(size_t stage, size_t lane, Choice& best) const {
    const Stage& s = stages_[stage];
    const std::vector<Firing>& order = s.program->lanes[lane].order;
    if (s.next[lane] == order.size()) return;
    const Firing& f = order[s.next[lane]];
    const std::optional<double> ready = ready_at(s, f);
    if (!ready) return;
    double start = std::max(*ready, s.free_at[lane]);
    if (lane > 0 && f.start > 0) {
      if (static_cast<size_t>(f.start) > s.started.size()) return;
      start = std::max(start, s.started[static_cast<size_t>(f.start) - 1]);
    }
    const Launch& l = launch_of(s, f);
    if (l.kind == LaunchKind::kRecv) {
      const auto sent = sent_.find({l.communication.key, f.micro_batch});
      if (sent == sent_.end()) return;
      start = std::max(start, sent->second);
    }
    if (l.kind != LaunchKind::kSubgraph && l.kind != LaunchKind::kSend) {
      start =
          std::max(start, on_one_host(s, l.communication) ? s.host_link_free : s.network_link_free);
    }
    if (start < best.start) best = {static_cast<int32_t>(stage), lane, start};
  }

  void fire(const Choice& choice) {
    Stage& s = stages_[static_cast<size_t>(choice.stage)];
    const Firing& f = s.program->lanes[choice.lane].order[s.next[choice.lane]++];
    const Launch& l = launch_of(s, f);
    const double end = choice.start + seconds(s, l);
    if (choice.lane == 0) s.started.push_back(choice.start);
    s.free_at[choice.lane] = end;
    s.ends[{f.launch, f.micro_batch}] = end;
    ++s.num_ended[static_cast<size_t>(f.launch)];
    double& last = s.last_end[static_cast<size_t>(f.launch)];
    last = std::max(last, end);
    if (l.kind == LaunchKind::kSend) {
      sent_[{l.communication.key, f.micro_batch}] = end;
    } else if (l.kind != LaunchKind::kSubgraph) {
      (on_one_host(s, l.communication) ? s.host_link_free : s.network_link_free) = end;
    }
    s.firings.push_back(
        {static_cast<int32_t>(choice.lane), f.launch, f.micro_batch, choice.start, end});
  }

  SimulatedStep summarize() {
    SimulatedStep step;
    for (Stage& s : stages_) {
      double compute = 0;
      double communication = 0;
      for (const TimedFiring& f : s.firings) {
        step.step_s = std::max(step.step_s, f.end_s);
        (f.lane == 0 ? compute : communication) += f.end_s - f.start_s;
      }
      if (compute > step.compute_s) {
        step.compute_s = compute;
        step.communication_s = communication;
      }
      step.overlap = std::min(step.overlap, overlap_share(s.firings));
      step.ranks.push_back({s.rank, std::move(s.firings)});
    }
    return step;
  }

  const Plan& plan_;
  const ClusterSpec& cluster_;
  std::vector<size_t> host_of_;  // by device
  std::vector<DeviceSpec> devices_;
  std::vector<Stage> stages_;
  std::map<std::pair<int32_t, int32_t>, double> sent_;  // by key and micro-batch
};

}  // namespace

Result<SimulatedStep> simulate_step(const Plan& plan, const ClusterSpec& cluster) {
  if (plan.mesh.num_ranks() > cluster.num_devices()) {
    return invalid_argument(fmt::format("{} logical ranks on the {} devices of the cluster",
                                        plan.mesh.num_ranks(), cluster.num_devices()));
  }
  return StepSimulation(plan, cluster).run();
}

std::string simulated_trace(const Plan& plan, const SimulatedStep& step) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::string_view comma;
  for (const SimulatedRank& rank : step.ranks) {
    const int32_t number = plan.ranks[static_cast<size_t>(rank.rank)].program;
    const RankProgram& program = plan.programs[static_cast<size_t>(number)];
    for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
      out += fmt::format(
          "{}"
          R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"rank {} lane {} {}"}}}})",
          comma, rank.rank, lane, rank.rank, lane, json_text(program.lanes[lane].name));
      comma = ",\n";
    }
    for (const TimedFiring& f : rank.firings) {
      out += fmt::format(
          ",\n"
          R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"step":1,"micro_batch":{}}}}})",
          json_text(program.launches[static_cast<size_t>(f.launch)].name), rank.rank, f.lane,
          f.start_s * 1e6, (f.end_s - f.start_s) * 1e6, f.micro_batch);
    }
  }
  return out + "\n]}\n";
}

}  // namespace sgactor::graph
