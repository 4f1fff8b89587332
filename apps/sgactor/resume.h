#pragma once
#include "apps/sgactor/arithmetic.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"
#include "transport/storage/checkpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::apps {

/// Where a run goes on: its newest whole checkpoint.
struct ResumePoint {
  int64_t step = 0;
  std::unique_ptr<transport::Checkpoint> checkpoint;
  std::vector<transport::CheckpointListing> skipped;  ///< newer, but not whole; with the reason
};
/// Errors: kInvalidArgument if the directory is missing or holds no whole checkpoint.
Result<ResumePoint> find_resume_point(const RunDirectory& run);

/// Checks that `job`, compiled to a graph of `schema_hash`, can go on from the checkpoint: the same
/// training graph, and the same data in the same order. Errors: kInvalidArgument naming the first
/// op that differs (`graph_bytes` is the job's serialized training graph), or the job key.
Status check_resumable(const transport::CheckpointInfo& info, const JobSpec& job,
                       uint64_t schema_hash, const std::string& graph_bytes);

/// Checks that ranks which compute by `is` in this process may go on with a run in which they
/// computed by `was` (empty: not recorded, so they may). Errors: as other_arithmetic; with
/// `allow_inexact` there are none, and a warning says what differs.
Status check_arithmetic(const RunDirectory& run, const RankArithmetic& is,
                        const RankArithmetic& was, bool allow_inexact);

/// Keys whose values differ between the job that a checkpoint carries and `job`, as "training.steps
/// 10 -> 20".
std::vector<std::string> changed_keys(const transport::CheckpointInfo& info, const JobSpec& job);

}  // namespace sgactor::apps
