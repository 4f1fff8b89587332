#include "tests/actor/two_lanes.h"

#include "graph/base/units.h"

#include <algorithm>

namespace sgactor::testing_support {

graph::Plan on_two_lanes(const graph::Plan& plan) {
  graph::Plan out = plan;
  graph::RankProgram& program = out.programs[0];
  for (graph::Launch& l : program.launches) {
    if (l.phase != graph::Phase::kReduce) l.lane = l.segment % 2;
  }
  const std::vector<graph::Firing> order = program.lanes[0].order;
  program.lanes.resize(2);
  for (graph::Lane& lane : program.lanes) lane.order.clear();
  for (const graph::Firing& f : order) {
    const auto lane = static_cast<size_t>(program.launches[static_cast<size_t>(f.launch)].lane);
    program.lanes[lane].order.push_back(f);
  }
  program.arena_bytes = 0;
  for (graph::Buffer& b : program.buffers) {
    for (int64_t& offset : b.offsets) {
      offset = program.arena_bytes;
      program.arena_bytes += round_up(b.bytes, 256);
    }
    b.first_use = 0;
    b.last_use = static_cast<int32_t>(program.lanes[0].order.size()) - 1;
  }
  return out;
}

}  // namespace sgactor::testing_support
