#pragma once
#include "graph/plan/plan.h"

namespace sgactor::actors::testing_support {

/// A plan by hand, without bodies: two forward launches, one backward, one reduce, one update, M
/// micro-batches, all on lane 0. Buffers of 256 bytes: 0 parameter, 1 accumulator, 2 tokens, 3
/// activation f0 -> f1 and b, 4 activation f1 -> b, 5 workspace of b, 6 metric of reduce. Buffers
/// 3, 4 and 5 live apart but for 3 and 4; 5 lies where 4 is not.
graph::Plan toy_plan(int32_t num_micro_batches);

enum ToyLaunch : int32_t { kF0 = 0, kF1, kB, kReduceLaunch, kUpdateLaunch };
enum ToyBuffer : int32_t {
  kParam = 0,
  kAccum,
  kTokensBuffer,
  kAct0,
  kAct1,
  kWork,
  kMetricBuffer,
};

}  // namespace sgactor::actors::testing_support
