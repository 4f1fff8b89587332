#include "tests/unit/actors/toy_plan.h"

namespace sgactor::actors::testing_support {
namespace {

using graph::BufferKind;
using graph::EdgeKind;
using graph::Phase;

graph::Buffer buffer(std::string name, BufferKind kind, int64_t offset) {
  graph::Buffer b;
  b.name = std::move(name);
  b.kind = kind;
  b.bytes = 256;
  b.offsets = {offset};
  return b;
}

graph::Launch launch(std::string name, Phase phase, std::vector<graph::LaunchInput> inputs,
                     std::vector<graph::BufferId> outputs) {
  graph::Launch l;
  l.name = std::move(name);
  l.phase = phase;
  l.inputs = std::move(inputs);
  l.outputs = std::move(outputs);
  return l;
}

}  // namespace

graph::Plan toy_plan(int32_t num_micro_batches) {
  graph::Plan plan;
  graph::RankProgram& p = plan.programs.emplace_back();
  plan.ranks.emplace_back();
  p.num_micro_batches = num_micro_batches;
  p.arena_bytes = 6 * 256;
  p.buffers = {buffer("w", BufferKind::kParameter, 0),
               buffer("grad/w", BufferKind::kAccumulator, 256),
               buffer("tokens", BufferKind::kBatch, 768),
               buffer("f0:0", BufferKind::kActivation, 1024),
               buffer("f1:0", BufferKind::kActivation, 1280),
               buffer("b.workspace", BufferKind::kWorkspace, 768),
               buffer("norm", BufferKind::kMetric, 512)};
  const graph::LaunchInput param{kParam, graph::kNoLaunch, EdgeKind::kState};
  const graph::LaunchInput accum{kAccum, graph::kNoLaunch, EdgeKind::kState};
  const graph::LaunchInput tokens{kTokensBuffer, graph::kNoLaunch, EdgeKind::kBatch};
  p.launches = {
      launch("f0", Phase::kForward, {param, tokens}, {kAct0}),
      launch("f1", Phase::kForward, {{kAct0, kF0, EdgeKind::kSameMicroBatch}}, {kAct1}),
      launch(
          "b", Phase::kBackward,
          {{kAct0, kF0, EdgeKind::kSameMicroBatch}, {kAct1, kF1, EdgeKind::kSameMicroBatch}, accum},
          {kAccum}),
      launch("reduce", Phase::kReduce, {{kAccum, kB, EdgeKind::kLastMicroBatch}}, {kMetricBuffer}),
      launch("update", Phase::kUpdate,
             {param,
              {kAccum, kB, EdgeKind::kLastMicroBatch},
              {kMetricBuffer, kReduceLaunch, EdgeKind::kSameMicroBatch}},
             {kParam})};
  p.launches[kB].workspace = kWork;
  graph::Lane& lane = p.lanes.emplace_back();
  for (int32_t m = 0; m < num_micro_batches; ++m) {
    for (graph::LaunchId l : {kF0, kF1, kB}) lane.order.push_back({l, m});
  }
  lane.order.push_back({kReduceLaunch, 0});
  lane.order.push_back({kUpdateLaunch, 0});
  return plan;
}

}  // namespace sgactor::actors::testing_support
