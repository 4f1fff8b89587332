// The graph by layer: a row a segment, a column a phase, a box a launch, a line an edge.
#include "graph/base/units.h"
#include "graph/compiler/explain_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace sgactor::graph::explain {
namespace {

constexpr double kLabel = 150;
constexpr double kColumn = 205;
constexpr double kRow = 34;
constexpr double kBoxHeight = 20;
constexpr size_t kMaxLaunches = 3000;
constexpr size_t kMaxEdges = 6000;

struct Box {
  double x = 0, y = 0, width = 0;
};

/// Launches of one phase and segment share their cell side by side.
std::vector<Box> place_boxes(const RankProgram& program, size_t count) {
  std::map<std::pair<int32_t, Phase>, std::vector<size_t>> cells;
  for (size_t i = 0; i < count; ++i) {
    cells[{program.launches[i].segment, program.launches[i].phase}].push_back(i);
  }
  std::vector<Box> boxes(count);
  for (const auto& [cell, launches] : cells) {
    const double width = (kColumn - 25) / static_cast<double>(launches.size());
    for (size_t k = 0; k < launches.size(); ++k) {
      boxes[launches[k]] = {
          kLabel + kColumn * static_cast<double>(cell.second) + width * static_cast<double>(k),
          20 + kRow * cell.first, width - 2};
    }
  }
  return boxes;
}

std::string edge(const Box& from, const Box& to, const Buffer& buffer) {
  const double x0 = from.x + from.width / 2;
  const double x1 = to.x + to.width / 2;
  const double y0 = from.y + (to.y > from.y ? kBoxHeight : 0);
  const double y1 = to.y + (to.y > from.y ? 0 : kBoxHeight);
  return fmt::format(
      "<path d=\"M{:.0f} {:.0f} C{:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {:.0f}\"><title>{}</title>"
      "</path>\n",
      x0, y0, x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1,
      html_escape(fmt::format("{}: {}, {}", buffer.name, buffer.type.to_string(),
                              format_bytes(buffer.bytes))));
}

std::string describe(const Plan& plan, const Launch& launch) {
  std::string text = fmt::format("{}: {} inputs, {} outputs", launch.name, launch.inputs.size(),
                                 launch.outputs.size());
  if (launch.kind != LaunchKind::kSubgraph) return text + ", communicates";
  const Subgraph& s = plan.subgraphs[static_cast<size_t>(launch.subgraph)];
  return text + fmt::format("; subgraph {} of {} ops, {} FLOPs, {} moved, workspace {}", s.name,
                            s.body.ops().size(), format_count(s.flops), format_bytes(s.bytes_moved),
                            format_bytes(s.workspace_bytes));
}

std::string draw_edges(const RankProgram& program, const std::vector<Box>& boxes,
                       size_t* num_edges) {
  std::string out;
  *num_edges = 0;
  for (size_t i = 0; i < boxes.size(); ++i) {
    std::set<LaunchId> drawn;
    for (const LaunchInput& input : program.launches[i].inputs) {
      const auto producer = static_cast<size_t>(input.producer);
      if (input.producer == kNoLaunch || producer >= boxes.size()) continue;
      ++*num_edges;
      if (*num_edges > kMaxEdges || !drawn.insert(input.producer).second) continue;
      out += edge(boxes[producer], boxes[i], program.buffers[static_cast<size_t>(input.buffer)]);
    }
  }
  return out;
}

}  // namespace

std::string layers_section(const Plan& plan) {
  const RankProgram& program = plan.programs[0];
  const size_t count = std::min(program.launches.size(), kMaxLaunches);
  const std::vector<Box> boxes = place_boxes(program, count);
  size_t num_edges = 0;
  const std::string edges = draw_edges(program, boxes, &num_edges);
  std::string out = fmt::format(
      "<h2>Graph by layer</h2>\n<p>{} segments, {} launches, {} edges between launches. A box is a "
      "launch, a line a buffer that one makes and another reads.</p>\n",
      plan.segments.size(), program.launches.size(), num_edges);
  if (count < program.launches.size() || num_edges > kMaxEdges) {
    out += fmt::format("<p class=\"muted\">At most {} launches and {} edges are drawn.</p>\n",
                       kMaxLaunches, kMaxEdges);
  }
  out += fmt::format(
      "<details open><summary>drawing</summary>\n<div class=\"scroll\">\n<svg "
      "viewBox=\"0 0 {} {}\" role=\"img\">\n",
      kLabel + kColumn * kNumPhases, 40 + kRow * static_cast<double>(plan.segments.size()));
  for (int phase = 0; phase < kNumPhases; ++phase) {
    out += fmt::format("<text x=\"{}\" y=\"12\">{}</text>\n", kLabel + kColumn * phase,
                       to_string(static_cast<Phase>(phase)));
  }
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    out += fmt::format("<text x=\"0\" y=\"{}\">{}</text>\n", 34 + kRow * static_cast<double>(s),
                       html_escape(plan.segments[s]));
  }
  out += edges;
  for (size_t i = 0; i < count; ++i) {
    out += rect(boxes[i].x, boxes[i].y, boxes[i].width, kBoxHeight,
                to_string(program.launches[i].phase), describe(plan, program.launches[i]));
  }
  return out + "</svg>\n</div></details>\n";
}

}  // namespace sgactor::graph::explain
