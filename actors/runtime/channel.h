#pragma once
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"
#include "transport/collectives/collectives.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace sgactor::actors {

/// One lane of collectives and sends of one logical rank. Operations are started in the order of
/// the plan's lane, by whoever holds the lane's token; several are under way at a time, and
/// complete in any order. Completions come on threads of the transport.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Starts launch `launch` of the lane for (step, micro_batch) and returns at once. Pointers are
  /// those of the launch's inputs and outputs, in the backend's storage; `input`s stay as they are
  /// and `output`s untouched until `sink` hears `token`. A failure names rank, launch and key.
  virtual void start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
                     std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
                     uint64_t token, kernels::CompletionSink& sink) = 0;
  /// `sink` hears `token` when all that has been started is complete; with the status of the first
  /// that failed. One at a time.
  virtual void drain(uint64_t token, kernels::CompletionSink& sink) = 0;
  /// Of what is started from now on. Any thread.
  virtual void set_generation(int64_t generation) = 0;
  /// Ends what is under way, with `why`. Waits for nobody.
  virtual void abort(const Status& why) = 0;
  [[nodiscard]] virtual bool idle() = 0;
  /// Blocks until nothing is under way, so that memory and sinks may go.
  virtual void wait() = 0;

  // Of channels that keep a log (channel_log.h); others do nothing.

  /// What was started in this step is started again in `generation`, in order, once nothing is
  /// under way in an earlier one: what is complete into memory of the log, the rest as it was.
  virtual void resume(int64_t /*generation*/) {}
  /// `step` is committed: nobody will ask for its operations again.
  virtual void forget(int64_t /*step*/) {}
  /// `listener` hears why an operation was suspended, on a thread of the transport. Before the
  /// first start.
  virtual void on_suspended(std::function<void(const Status&)> /*listener*/) {}
  /// Most bytes that the log has held at a time.
  [[nodiscard]] virtual int64_t log_high_water() const { return 0; }
};

struct ChannelSpec {
  const graph::Plan* plan = nullptr;
  int32_t rank = 0;  ///< logical
  int32_t lane = 0;  ///< of kind kCommunication
  kernels::Backend* backend = nullptr;
  transport::Collectives* collectives = nullptr;
};

/// A channel over the process's collectives. Borrows all that the spec names. What lies in memory
/// that the host does not see goes through host memory, on a thread of the channel. Errors:
/// kInvalidPlan (a group without the rank, sizes that do not fit); kUnsupported: a type that cannot
/// be reduced; kInvalidArgument: no collectives.
Result<std::unique_ptr<Channel>> create_channel(const ChannelSpec& spec);

}  // namespace sgactor::actors
