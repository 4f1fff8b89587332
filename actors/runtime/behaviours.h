#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <memory>

namespace sgactor::transport {
class Collectives;
}

namespace sgactor::actors {

class BlockingService;
class Channel;
struct ChannelSpec;
struct ProgramContext;

/// What is done between two steps of one logical rank.
class StepHook {
 public:
  virtual ~StepHook() = default;
  /// All work of `step` is complete on the rank, and the rank is done with the step only once this
  /// returns: until then nothing reads or writes its parameters and the next step does not begin.
  /// Runs on service() and may wait for other ranks. An error ends the run.
  virtual Status after_step(int64_t step, int64_t generation) = 0;
  /// A thread of this rank alone, so that ranks of one worker can wait for each other.
  [[nodiscard]] virtual BlockingService& service() = 0;
  /// Ends what after_step waits for, with `why`. Any thread; waits for nobody.
  virtual void abort(const Status& why) = 0;
  /// Waits for what was given to service(), which takes no more.
  virtual void close() = 0;
};

/// What a strategy puts in place of the runtime's own parts. Asked while ranks are set up, by one
/// thread at a time; outlives the run.
class Behaviours {
 public:
  virtual ~Behaviours() = default;
  /// The channel that stands for `channel`, which `spec` describes; `channel` itself where nothing
  /// changes. It may borrow what `spec` names.
  virtual Result<std::unique_ptr<Channel>> stand_in(const ChannelSpec& spec,
                                                    std::unique_ptr<Channel> channel) = 0;
  /// Null: nothing is done. The hook may borrow both arguments; `collectives` may be null.
  virtual Result<std::shared_ptr<StepHook>> step_hook(const ProgramContext& context,
                                                      transport::Collectives* collectives) = 0;
};

}  // namespace sgactor::actors
