#pragma once
#include "apps/sgactor/audit_record.h"
#include "apps/sgactor/ckpt_diff.h"
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sgactor::apps {

/// One thing that the run and its second execution do not agree on.
struct AuditDifference {
  int64_t step = 0;
  std::string what;  ///< "loss_bits", "sample_hash"
  std::string was;   ///< of the run; empty: it has no record
  std::string is;    ///< of the second execution
};

/// What comes of an audit.
struct AuditResult {
  int64_t steps = 0;  ///< compared
  int64_t other_losses = 0;
  int64_t other_samples = 0;
  int64_t unknown_samples = 0;  ///< the run has no hash of the step's
  std::vector<AuditDifference> differences;
  std::optional<CheckpointDifference> state;  ///< a: the run's; none: it was not compared
  bool interrupted = false;
  [[nodiscard]] bool equal() const {
    return !interrupted && differences.empty() && (!state || state->equal());
  }
};

/// What is to be executed again, and with what.
struct AuditWork {
  const RunRecord* record = nullptr;
  std::vector<AuditPiece> pieces;  ///< in order, without a gap
  std::string checkpoint;          ///< step directory before the first piece; empty: from step 1
  int64_t first_compared = 1;
  std::string final_checkpoint;  ///< of the run after the last piece; empty: none
  std::string scratch;           ///< an empty directory
  kernels::Backend* backend = nullptr;
  const std::atomic<bool>* stop = nullptr;
  /// Told of each difference, and of each step that was done, on another thread.
  std::function<void(const AuditDifference&)> on_difference;
  std::function<void(int64_t step)> on_step;
};

/// Trains the pieces one after the other in this process, all logical ranks in it, and compares
/// each step with the record. Between two pieces, and at the end where it is compared, the state is
/// a checkpoint in `scratch`. Validates, mirrors and traces nothing. Stops after a step once `stop`
/// is set. Errors: as training's; kInvalidArgument if the checkpoint is of another training graph
/// than the piece's job.
Result<AuditResult> run_audit(const AuditWork& work);

}  // namespace sgactor::apps
