#pragma once
#include "actors/runtime/rank_setup.h"
#include "actors/runtime/training.h"
#include "actors/runtime/worker.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace sgactor::actors {

/// A worker's part of a run but its actors: devices, memory, executables and state of the logical
/// ranks that it hosts. Set up first, closed last. In the coordinator's process, or in one of its
/// own, where `spawn_worker(parent, host(), coordinator)` is given an actor that stands for the
/// coordinator and is `parent` itself.
class WorkerAssembly {
 public:
  /// Checks spec and inputs, compiles, allocates, loads the state of `ranks` (ascending; none: a
  /// spare). Of `inputs` all but observer and stop is read. `shared` is made if null. Blocks.
  /// Errors: kInvalidArgument, kInvalidPlan, kUnsupported, kOutOfMemory, and what the state source
  /// says.
  static Result<std::unique_ptr<WorkerAssembly>> create(const TrainingSpec& spec,
                                                        const TrainingInputs& inputs,
                                                        const std::vector<int32_t>& ranks,
                                                        const Services& services,
                                                        std::shared_ptr<RunShared> shared = {});
  /// Pre: close() was called if actors were spawned.
  ~WorkerAssembly();
  WorkerAssembly(const WorkerAssembly&) = delete;
  WorkerAssembly& operator=(const WorkerAssembly&) = delete;

  [[nodiscard]] const std::shared_ptr<WorkerHost>& host() const { return host_; }
  [[nodiscard]] RunShared& shared() const { return *host_->shared; }
  [[nodiscard]] const std::vector<RankSetup>& ranks() const { return ranks_; }
  /// Ends what channels have under way, with `why`; their actors fail. Any thread; waits for
  /// nobody.
  void abort(const Status& why);
  /// Aborts what channels still have under way, waits for the device and lets go of all actors.
  /// Call after all actors are done and before the actor system ends.
  void close();

 private:
  WorkerAssembly() = default;
  RankHost host_rank(const TrainingSpec& spec, const RankSetup& setup, const Services& services);

  std::vector<RankSetup> ranks_;
  std::vector<std::shared_ptr<ProgramHost>> programs_;
  std::vector<std::shared_ptr<WriterHost>> writers_;
  std::shared_ptr<WorkerHost> host_;
};

}  // namespace sgactor::actors
