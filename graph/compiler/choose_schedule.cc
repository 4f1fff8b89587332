#include "graph/compiler/choose_schedule.h"

#include "graph/base/units.h"
#include "graph/compiler/explain_schedule.h"
#include "graph/passes/bucket_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr double kWorthIt = 1.005;
constexpr int64_t kSmallestBucket = 64 << 10;
constexpr int64_t kBucketFactor = 4;

struct StepTime {
  double step_s = 0;
  double exposed_s = 0;  ///< the step without what lane 0 computes
};

/// One way to lay the lanes out.
struct Candidate {
  ScheduleOptions options;
  int32_t num_operations = 0;  ///< that buckets decide
  StepTime time;
};

/// What laying lanes out reads: copying a plan's subgraphs would take most of the time.
Plan programs_of(const Plan& plan) {
  Plan out;
  out.mesh = plan.mesh;
  out.groups = plan.groups;
  out.programs = plan.programs;
  return out;
}

StepTime time_step(const Plan& laid, const LaunchTimes& times) {
  StepTime slowest;
  for (const RankProgram& program : laid.programs) {
    std::vector<double> launch_s;
    for (const Launch& l : program.launches) launch_s.push_back(times.seconds(program, l));
    StepTime time;
    double compute = 0;
    for (const TimedFiring& f : time_schedule(program, launch_s)) {
      time.step_s = std::max(time.step_s, f.end_s);
      if (f.lane == 0) compute += f.end_s - f.start_s;
    }
    time.exposed_s = time.step_s - compute;
    if (time.step_s > slowest.step_s) slowest = time;
  }
  return slowest;
}

int64_t num_operations(const Plan& plan) {
  int64_t count = 0;
  for (const RankProgram& program : plan.programs) count += count_buckets(plan, program);
  return count;
}

/// Most bytes that one bucket could hold.
int64_t all_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const RankProgram& program : plan.programs) {
    int64_t bytes = 0;
    for (const Launch& l : program.launches) bytes += communication_bytes(program, l);
    most = std::max(most, bytes);
  }
  return most;
}

bool gathers_ahead(const Plan& plan) {
  for (const RankProgram& program : plan.programs) {
    for (const Launch& l : program.launches) {
      if (l.kind == LaunchKind::kAllGather || l.kind == LaunchKind::kRecv) return true;
    }
  }
  return false;
}

/// The first whose step is within half a percent of the shortest.
const Candidate& best_of(const std::vector<Candidate>& candidates) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const Candidate& c : candidates) shortest = std::min(shortest, c.time.step_s);
  return *std::find_if(candidates.begin(), candidates.end(),
                       [&](const Candidate& c) { return c.time.step_s <= shortest * kWorthIt; });
}

class Chooser {
 public:
  Chooser(const Plan& plan, const LaunchTimes& times)
      : programs_(programs_of(plan)), times_(times) {}

  void choose_bucket(ScheduleChoice& choice) const;
  void choose_prefetch(ScheduleChoice& choice, int32_t max_prefetch) const;

 private:
  [[nodiscard]] Candidate measure(const ScheduleOptions& options) const {
    Plan trial = programs_;
    lay_lanes(trial, options);
    return {options, static_cast<int32_t>(num_operations(trial)), time_step(trial, times_)};
  }
  [[nodiscard]] const char* source() const {
    return times_.is_measured() ? "measured times" : "the model";
  }

  Plan programs_;
  const LaunchTimes& times_;
};

void Chooser::choose_bucket(ScheduleChoice& choice) const {
  ScheduleOptions options = choice.options;
  options.bucket_bytes = 0;
  std::vector<Candidate> candidates = {measure(options)};
  std::set<int32_t> seen;
  const int64_t all = all_bytes(programs_);
  for (int64_t bytes = kSmallestBucket;; bytes *= kBucketFactor) {
    options.bucket_bytes = bytes;
    Candidate next = measure(options);
    // A larger size that saves no operation only holds more back.
    if (seen.insert(next.num_operations).second) candidates.push_back(next);
    if (bytes >= all) break;
  }
  const Candidate& best = best_of(candidates);
  choice.options.bucket_bytes = best.options.bucket_bytes;
  for (const Candidate& c : candidates) {
    choice.considered.push_back(
        fmt::format("buckets {}: {} operations, {} exposed in a step of {} by {}",
                    describe_bucket(c.options.bucket_bytes), c.num_operations,
                    format_seconds(c.time.exposed_s), format_seconds(c.time.step_s), source()));
  }
  choice.considered.push_back(fmt::format(
      "buckets {} are taken: {}", describe_bucket(best.options.bucket_bytes),
      &best == candidates.data()
          ? "no size shortens the step by more than half a percent"
          : fmt::format("the smallest within half a percent of the shortest step; a segment each "
                        "takes {:.1f} % longer",
                        100 * (candidates[0].time.step_s / best.time.step_s - 1))));
}

void Chooser::choose_prefetch(ScheduleChoice& choice, int32_t max_prefetch) const {
  std::vector<Candidate> candidates;
  ScheduleOptions options = choice.options;
  const int32_t most = std::max(max_prefetch, options.prefetch);
  for (; options.prefetch <= most; options.prefetch = std::max(options.prefetch * 2, 1)) {
    candidates.push_back(measure(options));
    choice.considered.push_back(fmt::format("{} launches ahead: {} a step by {}", options.prefetch,
                                            format_seconds(candidates.back().time.step_s),
                                            source()));
  }
  choice.options.prefetch = best_of(candidates).options.prefetch;
}

}  // namespace

std::string describe_bucket(int64_t bytes) {
  return bytes == 0 ? "a segment each" : "of " + format_bytes(bytes);
}

ScheduleChoice choose_schedule(const Plan& plan, const ScheduleOptions& schedule,
                               const ScheduleLimits& limits, const LaunchTimes& times) {
  ScheduleChoice choice{schedule, {}};
  if (plan.groups.empty()) return choice;
  const Chooser chooser(plan, times);
  if (limits.choose_buckets && num_operations(plan) > 0) chooser.choose_bucket(choice);
  if (gathers_ahead(plan)) chooser.choose_prefetch(choice, limits.max_prefetch);
  return choice;
}

}  // namespace sgactor::graph
