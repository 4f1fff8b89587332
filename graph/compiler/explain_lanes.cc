// A step's schedule: a row a lane, a rectangle a firing, by estimated time.
#include "graph/base/units.h"
#include "graph/compiler/explain_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::graph::explain {
namespace {

constexpr double kWidth = 1200;
constexpr double kRow = 44;
constexpr double kBar = 26;
constexpr size_t kMaxFirings = 4000;

std::string lane_name(const Lane& lane, size_t index) {
  if (!lane.name.empty()) return lane.name;
  return index == 0 ? "compute" : fmt::format("lane {}", index);
}

std::string draw(const RankProgram& program, const std::vector<TimedFiring>& firings,
                 double seconds) {
  const double height = kRow * static_cast<double>(program.lanes.size()) + 18;
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, height);
  for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
    out +=
        fmt::format("<text x=\"0\" y=\"{:.0f}\">{}</text>\n", kRow * static_cast<double>(lane) + 12,
                    html_escape(lane_name(program.lanes[lane], lane)));
  }
  for (const TimedFiring& f : firings) {
    const Launch& launch = program.launches[static_cast<size_t>(f.launch)];
    const double x = f.start_s / seconds * kWidth;
    out += rect(x, kRow * f.lane + 16, (f.end_s - f.start_s) / seconds * kWidth, kBar,
                to_string(launch.phase),
                fmt::format("{}, micro-batch {}: from {} for {}", launch.name, f.micro_batch,
                            format_seconds(f.start_s), format_seconds(f.end_s - f.start_s)));
  }
  for (int tick = 0; tick <= 4; ++tick) {
    const double at = kWidth * tick / 4;
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>\n", at,
                       height - 4,
                       tick == 0   ? "start"
                       : tick == 4 ? "end"
                                   : "middle",
                       format_seconds(seconds * tick / 4));
  }
  return out + "</svg>\n";
}

}  // namespace

std::string schedule_section(const Plan& plan, const DeviceModel& device) {
  const RankProgram& program = plan.programs[0];
  std::vector<double> launch_s;
  for (const Launch& launch : program.launches) {
    launch_s.push_back(estimate_launch(plan, program, launch, device));
  }
  std::vector<TimedFiring> firings = time_schedule(program, launch_s);
  double step_s = 0;
  double compute_s = 0;
  for (const TimedFiring& f : firings) {
    step_s = std::max(step_s, f.end_s);
    if (f.lane == 0) compute_s += f.end_s - f.start_s;
  }
  std::string out = fmt::format(
      "<h2>Schedule of a step</h2>\n<p>Estimated for a device of {} FLOP/s, {}/s of memory, {}/s "
      "of links and {} a launch: {} a step, lane 0 busy {:.1f} % of it, communication hidden "
      "{:.1f} %.</p>\n",
      format_count(device.flops_per_s), format_bytes(static_cast<int64_t>(device.bytes_per_s)),
      format_bytes(static_cast<int64_t>(device.link_bytes_per_s)), format_seconds(device.launch_s),
      format_seconds(step_s), step_s > 0 ? 100 * compute_s / step_s : 0,
      100 * overlap_share(firings));
  if (firings.empty()) return out;
  double shown_s = step_s;
  if (firings.size() > kMaxFirings) {
    out += fmt::format("<p class=\"muted\">The first {} of {} firings are drawn.</p>\n",
                       kMaxFirings, firings.size());
    firings.resize(kMaxFirings);
    shown_s = 0;
    for (const TimedFiring& f : firings) shown_s = std::max(shown_s, f.end_s);
  }
  return out + draw(program, firings, std::max(shown_s, 1e-12));
}

}  // namespace sgactor::graph::explain
