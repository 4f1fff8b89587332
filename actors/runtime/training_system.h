#pragma once
#include "actors/runtime/coordinator.h"
#include "actors/runtime/training.h"

#include <memory>
#include <vector>

namespace sgactor::actors {

/// Everything of a run but the actor system: set up first, closed last. run_training and
/// simulations make their actors from the same assembly and differ in scheduler, services and
/// journal.
class RunAssembly {
 public:
  /// Checks spec and inputs, compiles, allocates, loads the state; one worker hosts all logical
  /// ranks of the plan. Blocks. Errors: kInvalidArgument, kInvalidPlan, kUnsupported,
  /// kOutOfMemory, and what the state source says.
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
  [[nodiscard]] const std::vector<RankSetup>& ranks() const { return ranks_; }
  /// Waits for the device and lets go of all actors. Call after all actors are done and before the
  /// actor system ends.
  void close();

 private:
  RunAssembly() = default;
  /// What the worker hosts for a rank that is set up.
  RankHost host_rank(const TrainingSpec& spec, const RankSetup& setup);

  std::vector<RankSetup> ranks_;
  std::vector<std::shared_ptr<ProgramHost>> programs_;
  std::vector<std::shared_ptr<WriterHost>> writers_;
  std::shared_ptr<CoordinatorHost> host_;
};

/// Summary of a run whose outcome is ok.
TrainingSummary summarize(const RunAssembly& assembly, const RunOutcome& outcome,
                          const kernels::Backend& backend);

}  // namespace sgactor::actors
