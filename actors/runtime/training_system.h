#pragma once
#include "actors/runtime/coordinator.h"
#include "actors/runtime/training.h"
#include "actors/runtime/worker_assembly.h"

#include <memory>
#include <vector>

namespace sgactor::actors {

/// Everything of a run in one process but the actor system: a coordinator's part and workers that
/// host all ranks. run_training and simulations make their actors from the same assembly and differ
/// in scheduler, services and journal.
class RunAssembly {
 public:
  /// One worker hosts all logical ranks of the plan. Blocks. Errors: as create_coordinator_host and
  /// WorkerAssembly::create have them.
  static Result<std::unique_ptr<RunAssembly>> create(const TrainingSpec& spec,
                                                     const TrainingInputs& inputs,
                                                     const Services& services,
                                                     std::shared_ptr<Journal> journal);
  /// Pre: close() was called if actors were spawned.
  ~RunAssembly();
  RunAssembly(const RunAssembly&) = delete;
  RunAssembly& operator=(const RunAssembly&) = delete;

  /// For spawn_coordinator. The caller sets on_finished.
  [[nodiscard]] const std::shared_ptr<CoordinatorHost>& host() const { return host_; }
  [[nodiscard]] RunShared& shared() const { return *host_->shared; }
  [[nodiscard]] const std::vector<RankSetup>& ranks() const { return worker_->ranks(); }
  [[nodiscard]] WorkerAssembly& worker() { return *worker_; }
  /// As WorkerAssembly has them.
  void abort(const Status& why) { worker_->abort(why); }
  void close() { worker_->close(); }

 private:
  RunAssembly() = default;

  std::unique_ptr<WorkerAssembly> worker_;
  std::shared_ptr<CoordinatorHost> host_;
};

/// Summary of a run whose outcome is ok. `shared` and `backend` are those of a worker; of a run in
/// several processes the allocation counters are those of this one.
TrainingSummary summarize(RunShared& shared, const RunOutcome& outcome,
                          const kernels::Backend& backend);

}  // namespace sgactor::actors
