#pragma once
#include "apps/sgactor/arithmetic.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/training_setup.h"
#include "transport/storage/state_source.h"

#include <cstdint>
#include <memory>

namespace sgactor::apps {

/// Where a run begins: step 1 with fresh or given weights, or after a checkpoint.
struct Start {
  int64_t first_step = 1;
  std::unique_ptr<transport::StateSource> state;
  std::string checkpoint;     ///< step directory that `state` is; empty: none
  RankArithmetic arithmetic;  ///< that computed it; empty: none, or not recorded
};
/// Parameters drawn from the seed, or read from model.weights (every tensor of which is checked
/// before this returns). Errors: kInvalidArgument naming the key and the tensor.
Result<Start> fresh_start(const JobSpec& job, const graph::LlamaConfig& config);
/// After the newest whole checkpoint of `run`; prints which that is, those skipped and why, and the
/// keys that changed. `fingerprint` is that of the device that computes all ranks; "": others do,
/// who compare theirs. Writes nothing. Errors: as find_resume_point, check_resumable and
/// check_arithmetic.
Result<Start> resumed_start(const JobSpec& job, const RunDirectory& run, const CompiledJob& c,
                            const std::string& fingerprint);

}  // namespace sgactor::apps
