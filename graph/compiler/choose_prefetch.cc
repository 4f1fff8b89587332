#include "graph/compiler/choose_prefetch.h"

#include "graph/base/units.h"
#include "graph/compiler/explain_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr double kWorthIt = 1.005;

bool gathers_ahead(const Plan& plan) {
  for (const RankProgram& program : plan.programs) {
    for (const Launch& l : program.launches) {
      if (l.kind == LaunchKind::kAllGather || l.kind == LaunchKind::kRecv) return true;
    }
  }
  return false;
}

double step_seconds(const Plan& plan, const LaunchTimes& times) {
  double slowest = 0;
  for (const RankProgram& program : plan.programs) {
    std::vector<double> launch_s;
    for (const Launch& l : program.launches) launch_s.push_back(times.seconds(program, l));
    for (const TimedFiring& f : time_schedule(program, launch_s))
      slowest = std::max(slowest, f.end_s);
  }
  return slowest;
}

}  // namespace

Result<PrefetchChoice> choose_prefetch(const Plan& plan, const ScheduleOptions& schedule,
                                       int32_t max_prefetch, const Profile* profile) {
  PrefetchChoice choice{schedule.prefetch, {}};
  if (plan.groups.empty() || !gathers_ahead(plan)) return choice;
  const LaunchTimes times(plan, profile);
  std::vector<std::pair<int32_t, double>> tried;
  double shortest = std::numeric_limits<double>::infinity();
  for (int32_t distance = schedule.prefetch; distance <= std::max(max_prefetch, schedule.prefetch);
       distance = std::max(distance * 2, 1)) {
    Plan trial = plan;
    ScheduleOptions options = schedule;
    options.prefetch = distance;
    SGA_TRY(schedule_collectives(trial, options));
    tried.emplace_back(distance, step_seconds(trial, times));
    shortest = std::min(shortest, tried.back().second);
    choice.considered.push_back(fmt::format("{} launches ahead: {} a step by {}", distance,
                                            format_seconds(tried.back().second),
                                            profile != nullptr ? "measured times" : "the model"));
  }
  for (const auto& [distance, seconds] : tried) {
    if (seconds > shortest * kWorthIt) continue;
    choice.prefetch = distance;
    break;
  }
  return choice;
}

}  // namespace sgactor::graph
