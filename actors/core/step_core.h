#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sgactor::actors {

struct StepPolicy {
  int64_t first_step = 1;
  int64_t last_step = 1;            ///< inclusive
  int64_t checkpoint_interval = 0;  ///< steps; 0: only at the end
  bool final_checkpoint = true;
  bool can_checkpoint = false;
  /// Newest step whose checkpoint is there already; -1: the one before the first step.
  int64_t checkpointed = -1;
  int64_t mirror_interval = 0;      ///< steps between copies in memory; 0: none
  int64_t validation_interval = 0;  ///< steps; 0: never
  bool can_validate = false;
};

/// Where a coordinator goes on that takes a run over from one that is gone.
struct TakenOver {
  int64_t committed = 0;   ///< the step
  bool owes_done = false;  ///< its numbers are not known: they are told again
  bool begun = false;      ///< the step behind it has been begun, so what was due between them too
  bool mirrored = false;   ///< a copy of its state is there
  bool validated = false;  ///< its validation has been told
};

/// What the coordinator does next. Between two steps come, where due and in this order, checkpoint
/// or mirror, and validation. A stop finishes the step under way, takes a checkpoint, and ends; a
/// pause takes a mirror and ends. One caller at a time.
class StepCore {
 public:
  StepCore() = default;
  explicit StepCore(const StepPolicy& policy);
  /// In place of what led to this point. Before the first next().
  void take_over(const TakenOver& at);

  enum class Action : uint8_t { kBeginStep = 0, kCheckpoint, kMirror, kValidate, kFinish };
  /// Next action; call again when it is over. `stop` and `pause` are read between steps only.
  /// After kFinish always kFinish.
  Action next(bool stop, bool pause = false);
  /// Step of the action: the one to begin, or the one done last.
  [[nodiscard]] int64_t step() const { return step_; }
  /// A stop came before the last step was done.
  [[nodiscard]] bool interrupted() const { return interrupted_; }
  /// The same of a pause.
  [[nodiscard]] bool paused() const { return paused_; }
  [[nodiscard]] int64_t last_done() const { return last_done_; }
  /// The step is done on every rank. Errors: kInternal if it was not begun.
  Status on_step_done(int64_t step);
  /// The checkpoint under way came to nothing: another is due after the next step.
  void redo_checkpoint();

 private:
  void set_due(int64_t step);

  StepPolicy policy_;
  TakenOver taken_over_{-1};
  int64_t step_ = 0;
  int64_t last_done_ = 0;
  bool open_ = false;
  bool checkpoint_due_ = false;
  bool mirror_due_ = false;
  bool validation_due_ = false;
  bool finished_ = false;
  bool interrupted_ = false;
  bool paused_ = false;
  bool redo_checkpoint_ = false;
  int64_t checkpointed_ = 0;
};

/// One rank's part of a step's numbers.
struct RankNumbers {
  float loss = 0;
  float grad_norm = 0;
  float lr = 0;
  bool has_loss = false;  ///< stages of a pipeline but the last one have none
};
/// Sum of the losses by a fixed tree of neighbours, like the gradients'.
float tree_sum_losses(std::span<const float> losses);

}  // namespace sgactor::actors
