#pragma once
#include "actors/core/schedule.h"
#include "actors/runtime/behaviours.h"
#include "actors/runtime/channel.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"
#include "transport/storage/state_source.h"
#include "transport/storage/tensor_slice.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::actors {

/// The streams and channels of one logical rank; streams are shared by its programs. A lane is used
/// by whoever holds its token, and by nobody else.
struct LaneSet {
  struct Lane {
    std::unique_ptr<kernels::Stream> stream;  ///< null: a channel is there instead
    std::unique_ptr<Channel> channel;
    std::unique_ptr<kernels::DeviceMemory> scratch;  ///< for the hungriest executable
    std::byte* marker = nullptr;        ///< 8 bytes that a fill may write to learn of completion
    std::atomic<int64_t> kernel_ns{0};  ///< time inside launches, added by completions in order
    /// Set by the first completion that failed: those after it failed because of it.
    std::atomic<bool> failed{false};
  };
  std::deque<Lane> lanes;
  std::unique_ptr<kernels::DeviceMemory> markers;

  LaneSet() = default;
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;
  /// Blocks until all work is complete: the memory may go afterwards.
  ~LaneSet();
  void synchronize();
  /// Ends what channels have under way, with `why`. Waits for nobody.
  void abort(const Status& why);
};

/// A range of the arena with the tensor in it.
struct TensorPlace {
  graph::BufferId buffer = graph::kNoBuffer;
  std::string name;
  TensorType type;
  std::byte* address = nullptr;
  int64_t bytes = 0;  ///< in the backend's storage
};

/// Type of the whole tensor that a state buffer holds all or a part of.
TensorType whole_type(const graph::Buffer& buffer);
/// Which part, on the rank at `place`; null: all of it.
std::optional<transport::TensorSlice> slice_of(const graph::Plan& plan, const graph::Buffer& buffer,
                                               const graph::RankPlacement& place);
/// Whether `rank` is the one that writes this state buffer to checkpoints: the first of those that
/// hold the same part, in order of pp, dp, tp.
bool writes_state(const graph::Plan& plan, int32_t rank, const graph::Buffer& buffer);

/// One program of one logical rank, ready to run: executables, memory with the state in it, wiring.
/// Immutable once set up, but for what is in the memory. Borrows plan and backend.
struct ProgramContext {
  int32_t rank = 0;
  int64_t incarnation = 1;
  const graph::Plan* plan = nullptr;
  const graph::RankProgram* program = nullptr;
  kernels::Backend* backend = nullptr;
  Schedule schedule;
  std::shared_ptr<LaneSet> lanes;
  std::unique_ptr<kernels::DeviceMemory> arena;
  std::vector<std::unique_ptr<kernels::Executable>> executables;  ///< index: subgraph
  std::vector<std::vector<std::byte*>> addresses;                 ///< buffer -> slot -> address

  std::vector<TensorPlace> state;    ///< parameters and moments, in order of buffers
  std::vector<TensorPlace> scalars;  ///< "step", "inv_valid_tokens", "tp_index"
  /// Accumulators that must be zero at the start of a step; others are written before they are
  /// read.
  std::vector<TensorPlace> accumulators;
  graph::BufferId tokens = graph::kNoBuffer;
  graph::BufferId targets = graph::kNoBuffer;

  [[nodiscard]] const graph::Launch& launch(graph::LaunchId l) const {
    return program->launches[static_cast<size_t>(l)];
  }
  [[nodiscard]] const graph::Buffer& buffer(graph::BufferId b) const {
    return program->buffers[static_cast<size_t>(b)];
  }
  [[nodiscard]] std::byte* address(graph::BufferId b, int32_t slot) const {
    return addresses[static_cast<size_t>(b)][static_cast<size_t>(slot)];
  }
  /// The persistent tensor that the step reports under `name` ("loss", "grad_norm", "lr"), or the
  /// output of `role`; null if there is none.
  [[nodiscard]] const TensorPlace* find_report(graph::Role role, std::string_view name) const;

  std::vector<std::pair<graph::Role, TensorPlace>> reports;
};

struct ContextSpec {
  const graph::Plan* plan = nullptr;
  int32_t rank = 0;  ///< logical; names the program
  kernels::Backend* backend = nullptr;
  /// Parameters by this name and type are its memory instead of memory of this program's own; may
  /// be null.
  const ProgramContext* share_with = nullptr;
};

/// Compiles and lays out; the memory is not filled and there are no lanes yet. Blocks. Errors:
/// kInvalidPlan, kUnsupported (an op the backend lacks), kOutOfMemory.
Result<std::shared_ptr<ProgramContext>> create_context(const ContextSpec& spec);
/// Streams with scratch for all of `contexts`, given to each of them; channels for those of the
/// first, which `behaviours` (null: none) may replace; `logged`: those outlive a lost member
/// (channel_log.h). Errors: as create_channel and behaviours have them.
Status create_lanes(const std::vector<ProgramContext*>& contexts,
                    transport::Collectives* collectives, Behaviours* behaviours = nullptr,
                    bool logged = false);
/// Streams for `context` alone; its lanes of communication stay empty, and nobody may launch there.
/// Errors: kOutOfMemory.
Status create_streams(ProgramContext& context);
/// Fills parameters and moments, cut from the whole tensors where the rank holds a part. Blocks.
Status load_state(const ProgramContext& context, const transport::StateSource& source);

/// Pointers of one launch, kept by who launches so that launching allocates nothing.
struct LaunchPointers {
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
};
/// Puts launch `l` for `micro_batch` of `step` on its lane's stream or starts it on its channel.
/// Pre: the caller holds the lane.
void enqueue_launch(const ProgramContext& context, graph::LaunchId l, int64_t step,
                    int32_t micro_batch, LaunchPointers& pointers, uint64_t token,
                    kernels::CompletionSink& sink);

}  // namespace sgactor::actors
