#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::graph {

/// The compiled product and the only thing that compiler and runtime share. Plain data, the same on
/// every rank.
///
/// Life of a step of one logical rank: for each lane, the firings of `lanes[i].order` in that
/// order. A firing runs one launch for one micro-batch. Launches of phases kForward and kBackward
/// fire once a micro-batch; kPrepare (gathers of what the last update made), kReduce and kUpdate
/// once a step (micro_batch 0), kUpdate only after COMMIT(step).
///
/// Lane 0 computes; every other lane is a channel: the launches of one group of logical ranks in
/// the same order on each of them. A firing of such a lane may start once `Firing::start` firings
/// of lane 0 have been launched and its inputs are there; what waits for it waits for its
/// completion. Read as one list (lane 0 in order, a firing of another lane behind the `start`-th of
/// lane 0, equal ones by micro-batch and launch: program_order), the firings are an order in which
/// the step can run: leases of overlapping bytes are granted in it, so that no two lanes can wait
/// for each other.

using SubgraphId = int32_t;
using BufferId = int32_t;
using LaunchId = int32_t;
inline constexpr BufferId kNoBuffer = -1;
inline constexpr LaunchId kNoLaunch = -1;

/// Offsets of buffers in the arena, and of values in a workspace, are multiples of this many bytes.
inline constexpr int64_t kMinAlignBytes = 64;

/// How many bytes an element takes in device memory: native; always 8 (float64 oracle); or one
/// 64-bit hash a tensor.
enum class StorageModel : uint8_t { kNative = 0, kFloat64, kHash };
std::string_view to_string(StorageModel model);
int64_t storage_bytes(const TensorType& type, StorageModel model);

/// Where a value of a subgraph's body lives while it runs. A body input lives in its input, an
/// output in its output; an output that updates an input in place may be named either way, since a
/// launch binds both to one buffer.
struct ValuePlace {
  enum class Space : uint8_t { kWorkspace = 0, kInput, kOutput } space = Space::kWorkspace;
  int32_t index = 0;   ///< which input or output
  int64_t offset = 0;  ///< bytes from the start of that space
  friend bool operator==(const ValuePlace&, const ValuePlace&) = default;
};

/// A maximal piece of the graph with no communication inside; compiled once, launched for many
/// layers.
struct Subgraph {
  std::string name;  ///< "layer.forward", "head.backward", "update.3"
  Graph body;        ///< its inputs and outputs, in order, are a launch's
  uint64_t structure_hash = 0;
  std::vector<ValuePlace> places;  ///< one a value of `body`, by plan_memory
  int64_t workspace_bytes = 0;
  /// output j updates input alias_input[j] in place (same buffer); -1: a buffer of its own
  std::vector<int32_t> alias_input;
  double flops = 0;         ///< of one launch
  int64_t bytes_moved = 0;  ///< operands and results of its ops, one launch
};

/// Which part of a whole tensor a persistent buffer of one logical rank holds. Cut along tp first,
/// then what is left, flat, along dp.
struct StateSlice {
  /// Dims of the whole tensor, as checkpoints name it; empty dims and not `sharded()`: the buffer
  /// is the whole tensor.
  Shape full;
  int32_t tp_dim = -1;   ///< cut into equal ranges of this dim over tp, the last ones padded with
                         ///< zeros; -1: not cut
  int64_t dp_piece = 0;  ///< > 0: elements [dp * piece, (dp + 1) * piece) of the flat tp part,
                         ///< padded with zeros; 0: not cut
  [[nodiscard]] bool sharded() const { return tp_dim >= 0 || dp_piece > 0; }
  friend bool operator==(const StateSlice&, const StateSlice&) = default;
};

enum class BufferKind : uint8_t {
  kParameter = 0,
  kMoment,
  kAccumulator,
  kScalar,
  kMetric,      ///< persistent: whole job. Also a forward plan's loss and logits
  kBatch,       ///< tokens and targets of a micro-batch, filled by the feeder
  kActivation,  ///< between launches, lifetime-planned
  kWorkspace,   ///< values inside one launch, lifetime-planned
};
[[nodiscard]] constexpr bool is_persistent(BufferKind k) { return k <= BufferKind::kMetric; }
std::string_view to_string(BufferKind kind);
/// Kind of the buffer that a value of this role lives in.
BufferKind buffer_kind(Role role);

/// A place in the rank's arena.
struct Buffer {
  std::string name;  ///< parameter name, "grad/…", "m/…", or "layer.3.forward:2"
  TensorType type;   ///< kWorkspace: u8[bytes]
  BufferKind kind = BufferKind::kActivation;
  int64_t bytes = 0;  ///< of one slot, by the plan's storage model
  int32_t num_slots =
      1;  ///< micro-batches that may be in flight; slot of micro-batch m is m % num_slots
  std::vector<int64_t> offsets;  ///< one a slot, bytes from the start of the arena
  /// Live range as positions in the compute lane's order, inclusive. Persistent buffers and kBatch
  /// (the feeder may fill a slot at any time): [0, order.size()-1]. Others: from the first to the
  /// last firing that touches the buffer, for buffers of forward and backward launches those of
  /// micro-batch 0; all micro-batches are alike, micro-batch m uses slot m % num_slots over the
  /// range of its own firings.
  /// A launch of another lane counts as touching them from its `start` to one before the first
  /// firing of lane 0 that waits for it, or some firings further where overlap is planned.
  int32_t first_use = 0;
  int32_t last_use = 0;
  StateSlice slice;  ///< kParameter and kMoment
};

enum class LaunchKind : uint8_t {
  kSubgraph = 0,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv
};

/// How an input becomes ready.
enum class EdgeKind : uint8_t {
  kSameMicroBatch = 0,  ///< its producer has run for this micro-batch
  kLastMicroBatch,      ///< its producer has run for every micro-batch of the step (accumulators)
  kState,     ///< persistent state of the last committed step, or a number set at the step's begin
  kBatch,     ///< the feeder has filled it for this micro-batch
  kPrepared,  ///< its producer, of phase kPrepare, has run for this step; serves all micro-batches
};

struct LaunchInput {
  BufferId buffer = kNoBuffer;
  LaunchId producer = kNoLaunch;  ///< kNoLaunch for kState and kBatch
  EdgeKind edge = EdgeKind::kState;
};

enum class MeshAxis : uint8_t { kPp = 0, kDp, kTp };

/// A kind of group: for a logical rank, those that differ from it along `axis` alone.
struct RankGroup {
  std::string name;  ///< "dp", "tp", "pp", "embedding"
  MeshAxis axis = MeshAxis::kDp;
  std::vector<int32_t> coordinates;  ///< along the axis, ascending; empty: all of them
  friend bool operator==(const RankGroup&, const RankGroup&) = default;
};

enum class Reduction : uint8_t { kSum = 0, kMax };

/// What recovery may count on (architecture, section 9).
enum class ReplayKind : uint8_t {
  kRegather = 0,  ///< members serve their shard again
  kInput,         ///< posted inputs are kept until commit and it is run again for who lacks it
  kResult,        ///< a named keeper hands the result over
};

/// How a launch that is no subgraph communicates. Inputs and outputs pair up; all pairs are one
/// operation of the channel.
///   all_reduce      n elements -> n elements, reduced over the group
///   reduce_scatter  n -> piece: member i gets elements [i * piece, (i + 1) * piece) of the
///                   reduction, zeros beyond n
///   all_gather      piece -> n: member i supplies those elements; what lies beyond n is dropped
///   send, recv      whole tensors to or from the member at `peer`
/// Exact reductions add in f32 (f64 for f64): neighbours in the group's order, level by level, an
/// odd one carried up.
struct Communication {
  int32_t group = -1;  ///< index into Plan::groups
  int32_t peer = -1;   ///< kSend, kRecv, kBroadcast (the root): coordinate along the group's axis
  int32_t key = -1;    ///< the same at all that take part, unique in the plan otherwise
  Reduction reduction = Reduction::kSum;
  bool exact = true;
  ReplayKind replay = ReplayKind::kInput;
  friend bool operator==(const Communication&, const Communication&) = default;
};

struct Launch {
  std::string name;  ///< "layer.3.forward"
  LaunchKind kind = LaunchKind::kSubgraph;
  SubgraphId subgraph = -1;
  Phase phase = Phase::kForward;
  int32_t segment = 0;  ///< index into Plan::segments
  int32_t lane = 0;     ///< index into RankProgram::lanes
  std::vector<LaunchInput> inputs;
  std::vector<BufferId> outputs;
  BufferId workspace = kNoBuffer;
  Communication communication;  ///< of all kinds but kSubgraph
};

struct Firing {
  LaunchId launch = kNoLaunch;
  int32_t micro_batch = 0;
  int32_t start = 0;  ///< other lanes than 0: firings of lane 0 launched before it may start
  friend bool operator==(const Firing&, const Firing&) = default;
};

enum class LaneKind : uint8_t { kCompute = 0, kCopy, kCommunication };
struct Lane {
  LaneKind kind = LaneKind::kCompute;
  std::string name;    ///< "compute", "dp.gather"
  int32_t group = -1;  ///< kCommunication: index into Plan::groups
  std::vector<Firing> order;
};

/// What a logical rank does in a step. Ranks that do the same share one program.
struct RankProgram {
  std::vector<Buffer> buffers;
  std::vector<Launch> launches;
  std::vector<Lane> lanes;  ///< lanes[0] is compute
  int32_t num_micro_batches = 1;
  int64_t arena_bytes = 0;  ///< all buffers, by plan_memory
};

struct MemoryStats {
  /// Every tensor of a step with one micro-batch at its own address: all buffers but workspaces,
  /// and each launch's inner values but views and in-place results.
  int64_t naive_bytes = 0;
  int64_t planned_bytes = 0;  ///< the arena
  /// Most bytes live at one time, by single ops: no plan with these aliases can need less.
  int64_t lower_bound_bytes = 0;
  int64_t activation_peak_bytes = 0;  ///< transient part of the arena
  int64_t parameter_bytes = 0;
  int64_t moment_bytes = 0;
  int64_t accumulator_bytes = 0;
};

/// Mesh coordinates of a logical rank and which program it runs.
struct RankPlacement {
  int32_t pp = 0, dp = 0, tp = 0;
  int32_t program = 0;
};

/// Degrees of the mesh axes.
struct MeshShape {
  int32_t pp = 1, dp = 1, tp = 1;
  [[nodiscard]] int32_t num_ranks() const { return pp * dp * tp; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

/// How a step's work lies on the mesh, beyond its shape.
enum class PipelineSchedule : uint8_t { kGPipe = 0, k1F1B, kInterleaved };

struct Plan {
  std::string name;
  uint64_t schema_hash = 0;  ///< of the training graph, independent of mesh and device
  StorageModel storage = StorageModel::kNative;
  MeshShape mesh;
  std::vector<std::string> segments;
  std::vector<Subgraph> subgraphs;
  std::vector<RankProgram> programs;
  std::vector<RankPlacement> ranks;  ///< index: logical rank
  std::vector<RankGroup> groups;
  int32_t zero_stage = 0;
  MemoryStats memory;          ///< of program 0
  double flops_per_token = 0;  ///< model FLOPs, forward and backward: 6 * parameters in matmuls +
                               ///< causal attention at half
  int64_t num_parameters = 0;
  int32_t ops_before = 0;  ///< ops of both graphs before and after fuse_ops
  int32_t ops_after = 0;
  double compile_ms = 0;
};

/// Logical ranks of `rank`'s group of that kind, in order of their coordinate; holds `rank` unless
/// the group's coordinates leave it out.
std::vector<int32_t> group_members(const Plan& plan, int32_t group, int32_t rank);
/// Logical rank at these coordinates; -1 if there is none.
int32_t rank_at(const Plan& plan, int32_t pp, int32_t dp, int32_t tp);

/// Checks what the runtime relies on: indices, lane orders that respect every edge and fire each
/// launch as often as its phase says, offsets inside the arena, no two buffers that live at once
/// overlapping, subgraph signatures equal to buffers. Errors: kInvalidPlan naming launch, buffer or
/// subgraph. Safe on untrusted plans.
/// Of plans for several ranks also: the members of every group run the same operations of a lane in
/// the same order, sends meet receives, and the whole mesh can run to its end (no deadlock).
Status verify_plan(const Plan& plan);
/// All of verify_plan but places, workspaces and offsets: what holds before plan_memory has run.
Status verify_structure(const Plan& plan);
/// The rest alone. Pre: verify_structure(plan) is ok.
Status verify_memory(const Plan& plan);

}  // namespace sgactor::graph
