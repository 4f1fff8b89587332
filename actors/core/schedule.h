#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <vector>

namespace sgactor::actors {

/// What one place in a lane's order asks for.
enum class ItemKind : uint8_t {
  kFeed = 0,  ///< the feeder copies the batch buffers of a micro-batch in; of a program without
              ///< any, it learns once a step that the step's numbers have been taken
  kLaunch,    ///< a subgraph actor launches, or starts an operation of the lane's channel
  kCommit,    ///< the worker waits for COMMIT(step); all earlier work of the lane is complete
  kEnd,       ///< the worker parks the lane
};

/// One slot of one buffer.
struct SlotRef {
  graph::BufferId buffer = graph::kNoBuffer;
  int32_t slot = 0;
  friend bool operator==(const SlotRef&, const SlotRef&) = default;
};

/// An execution on another lane than 0 that may start: to be told as its awaited `input`.
struct Gate {
  graph::LaunchId launch = graph::kNoLaunch;
  int32_t input = 0;
  int32_t micro_batch = 0;
  friend bool operator==(const Gate&, const Gate&) = default;
};

/// A place in a lane's order, with the pool slots it must hold before it may go.
struct LaneItem {
  ItemKind kind = ItemKind::kLaunch;
  graph::LaunchId launch = graph::kNoLaunch;  ///< kLaunch only
  int32_t micro_batch = 0;
  /// kLaunch: leased outputs in order of output, then the workspace if there is one. kFeed: the
  /// batch buffers in order.
  std::vector<SlotRef> leases;
  int64_t order = 0;        ///< kFeed, kLaunch: place among the items of all lanes (program_order)
  std::vector<Gate> opens;  ///< lane 0: what may start once this has been launched
};

/// Who waits for a tensor.
struct Consumer {
  graph::LaunchId launch = graph::kNoLaunch;
  int32_t input = 0;
  graph::EdgeKind edge = graph::EdgeKind::kSameMicroBatch;
  int32_t num_firings = 1;  ///< of that launch in a step
  /// It runs on no stream (its lane is a channel): told when the tensor is there, not when its
  /// producer has been launched.
  bool on_completion = false;
};

/// How a launch hangs together with the others.
struct LaunchWiring {
  int32_t lane = 0;
  int32_t num_firings = 1;         ///< a step
  std::vector<int32_t> positions;  ///< in its lane's items; index: micro-batch
  bool communicates = false;       ///< an operation of the lane's channel
  /// Inputs that arrive as handles. Beyond the launch's own inputs stand further writers of an
  /// input, one each, and the gate of Firing::start, where the inputs alone do not imply it.
  std::vector<int32_t> awaited;
  std::vector<int32_t> awaited_index;            ///< input -> place in `awaited`, -1: not awaited
  std::vector<std::vector<Consumer>> consumers;  ///< a list an output
  std::vector<int32_t> output_lease;  ///< output -> place in LaneItem::leases, -1: not leased
  std::vector<int32_t> output_alias;  ///< output -> input whose transient buffer it updates, or -1
  int32_t num_leases = 0;             ///< of one firing
  bool has_workspace = false;         ///< then it is the last lease
  bool feeds_other_lane = false;      ///< a consumer sits on another stream: record an event
  bool feeds_channel = false;         ///< a consumer waits for completion
};

/// A rank program as its actors carry it out: the plan's lane orders with feeding, commit and end
/// put in, and the wiring of handles. A pure function of the plan, the same on every rank that runs
/// the program.
struct Schedule {
  std::vector<std::vector<LaneItem>> lanes;
  std::vector<LaunchWiring> launches;
  std::vector<graph::BufferId> batch_buffers;  ///< kBatch buffers, ascending
  std::vector<std::vector<Consumer>> batch_consumers;
  std::vector<int32_t> feed_positions;  ///< in lane 0; index: micro-batch, or 0 alone without
                                        ///< batch buffers
  std::vector<Gate> opens_at_begin;     ///< what may start at once
  int32_t num_micro_batches = 1;
};

/// The feed of a micro-batch stands right before its first user on lane 0 (of a program without
/// batches: at the beginning), and the commit right before a lane's first kUpdate firing. Pre:
/// verify_plan(plan) is ok. Errors: kInvalidPlan naming launch or buffer, also if something that
/// the vote waits for may start only after the commit.
Result<Schedule> build_schedule(const graph::Plan& plan, int32_t program);

}  // namespace sgactor::actors
