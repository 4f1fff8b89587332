#pragma once
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"
#include "transport/collectives/collectives.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::actors {

/// An operation that a channel has started, for a report. Of what all members call the same: key,
/// step and micro-batch.
struct ChannelOperation {
  int32_t lane = 0;
  std::string channel;    ///< the lane's name in the plan
  std::string launch;     ///< its name in the plan
  std::string_view kind;  ///< "all_reduce", "send", …; a literal
  int32_t key = -1;
  int64_t step = 0;
  int32_t micro_batch = 0;
  int64_t sequence = 0;  ///< of the channel's operations in this step, from 1
  int64_t start_ns = 0;  ///< steady clock
  bool done = false;
  std::vector<int32_t> members;  ///< logical ranks that take part
};

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

  /// Adds what is under way, also what is suspended, and of what is done as much as is known still
  /// of the newest step. Any thread.
  virtual void list(std::vector<ChannelOperation>& /*out*/) const {}

  /// Of a channel that copies what the host does not see into its memory and back
  /// (staged_channel.h): `layer` goes around what works on the host's copies, before the first
  /// start. False: there is no such thing here, and `layer` was not called.
  using Layer = std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)>;
  virtual bool put_below(const Layer& /*layer*/) { return false; }

  // Of channels that keep a log (channel_log.h); others do nothing.

  /// What was started in this step is started again in `generation`, in order, once nothing is
  /// under way in an earlier one: what is complete into memory of the log, the rest as it was.
  virtual void resume(int64_t /*generation*/) {}
  /// `step` is committed: nobody will ask for its operations again.
  virtual void forget(int64_t /*step*/) {}
  /// Hash of what the rank alone has computed and posted in `step` (gradient_check.h). Pre: all of
  /// it is started. Any thread.
  [[nodiscard]] virtual uint64_t posted(int64_t /*step*/) const { return 0; }
  /// Which results of a launch are kept: none, those of one firing (all bring the same), or each.
  enum class Keeps : uint8_t { kNone = 0, kOnce, kEach };
  /// What `launches` (index: launch) bring in each `interval`-th step is kept until the next such
  /// step. Before the first start.
  virtual void keep_results(const std::vector<Keeps>& /*launches*/, int64_t /*interval*/) {}
  /// What the firing of such a launch has brought in `step`, one a buffer; null if it is not kept.
  /// Any thread.
  using Results = std::vector<std::vector<std::byte>>;
  [[nodiscard]] virtual std::shared_ptr<const Results> kept(graph::LaunchId /*launch*/,
                                                            int32_t /*micro_batch*/,
                                                            int64_t /*step*/) const {
    return nullptr;
  }
  /// Fault injection: a bit of the next such post is another. Any thread.
  virtual void flip_bit() {}
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

/// A channel over the process's collectives, staged where the host does not see the backend's
/// memory. Borrows all that the spec names. Errors:
/// kInvalidPlan (a group without the rank, sizes that do not fit); kUnsupported: a type that cannot
/// be reduced; kInvalidArgument: no collectives.
Result<std::unique_ptr<Channel>> create_channel(const ChannelSpec& spec);

}  // namespace sgactor::actors
