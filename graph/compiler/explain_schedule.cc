#include "graph/compiler/explain_schedule.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sgactor::graph {
namespace {

/// Walks the lanes in the one order that the plan defines over all of them.
class Timer {
 public:
  Timer(const RankProgram& program, const std::vector<double>& launch_s)
      : program_(program),
        launch_s_(launch_s),
        next_(program.lanes.size(), 0),
        free_at_(program.lanes.size(), 0.0),
        last_end_(program.launches.size(), 0.0) {}

  std::vector<TimedFiring> run() {
    while (true) {
      const int32_t lane = next_lane();
      if (lane < 0) return std::move(result_);
      fire(lane);
    }
  }

 private:
  [[nodiscard]] bool has_next(size_t lane) const {
    return next_[lane] < program_.lanes[lane].order.size();
  }
  [[nodiscard]] const Firing& next_firing(size_t lane) const {
    return program_.lanes[lane].order[next_[lane]];
  }

  [[nodiscard]] int32_t next_lane() const {
    const bool computes = !program_.lanes.empty() && has_next(0);
    for (size_t lane = 1; lane < program_.lanes.size(); ++lane) {
      if (!has_next(lane)) continue;
      if (!computes || static_cast<size_t>(next_firing(lane).start) <= next_[0])
        return static_cast<int32_t>(lane);
    }
    return computes ? 0 : -1;
  }

  [[nodiscard]] double inputs_ready(const Launch& launch, int32_t micro_batch) const {
    double ready = 0;
    for (const LaunchInput& input : launch.inputs) {
      if (input.producer == kNoLaunch) continue;
      const auto same = ends_.find({input.producer, micro_batch});
      const bool of_this = input.edge == EdgeKind::kSameMicroBatch && same != ends_.end();
      ready =
          std::max(ready, of_this ? same->second : last_end_[static_cast<size_t>(input.producer)]);
    }
    return ready;
  }

  void fire(int32_t lane) {
    const auto l = static_cast<size_t>(lane);
    const Firing& firing = next_firing(l);
    const auto launch = static_cast<size_t>(firing.launch);
    double start =
        std::max(free_at_[l], inputs_ready(program_.launches[launch], firing.micro_batch));
    if (lane > 0 && firing.start > 0 && !compute_starts_.empty()) {
      const size_t index = std::min(static_cast<size_t>(firing.start), compute_starts_.size()) - 1;
      start = std::max(start, compute_starts_[index]);
    }
    const double end = start + launch_s_[launch];
    if (lane == 0) compute_starts_.push_back(start);
    free_at_[l] = end;
    ends_[{firing.launch, firing.micro_batch}] = end;
    last_end_[launch] = std::max(last_end_[launch], end);
    result_.push_back({lane, firing.launch, firing.micro_batch, start, end});
    ++next_[l];
  }

  const RankProgram& program_;
  const std::vector<double>& launch_s_;
  std::vector<size_t> next_;      // by lane
  std::vector<double> free_at_;   // by lane
  std::vector<double> last_end_;  // by launch
  std::vector<double> compute_starts_;
  std::map<std::pair<LaunchId, int32_t>, double> ends_;
  std::vector<TimedFiring> result_;
};

}  // namespace

double estimate_launch(const Plan& plan, const RankProgram& program, const Launch& launch,
                       const DeviceModel& model) {
  if (launch.kind == LaunchKind::kSubgraph) {
    const Subgraph& s = plan.subgraphs[static_cast<size_t>(launch.subgraph)];
    return model.launch_s + std::max(s.flops / model.flops_per_s,
                                     static_cast<double>(s.bytes_moved) / model.bytes_per_s);
  }
  int64_t bytes = 0;
  for (const LaunchInput& input : launch.inputs) {
    bytes += program.buffers[static_cast<size_t>(input.buffer)].bytes;
  }
  return model.launch_s + static_cast<double>(bytes) / model.link_bytes_per_s;
}

std::vector<TimedFiring> time_schedule(const RankProgram& program,
                                       const std::vector<double>& launch_s) {
  return Timer(program, launch_s).run();
}

double overlap_share(const std::vector<TimedFiring>& firings) {
  std::vector<std::pair<double, double>> compute;
  double busy = 0;
  for (const TimedFiring& f : firings) {
    if (f.lane == 0) compute.emplace_back(f.start_s, f.end_s);
    if (f.lane != 0) busy += f.end_s - f.start_s;
  }
  if (busy <= 0) return 1;
  double hidden = 0;
  for (const TimedFiring& f : firings) {
    if (f.lane == 0) continue;
    // Lane 0 is in order of time and has no two firings at once.
    auto at = std::lower_bound(compute.begin(), compute.end(), f.start_s,
                               [](const auto& c, double t) { return c.second <= t; });
    for (; at != compute.end() && at->first < f.end_s; ++at) {
      hidden += std::min(at->second, f.end_s) - std::max(at->first, f.start_s);
    }
  }
  return hidden / busy;
}

}  // namespace sgactor::graph
