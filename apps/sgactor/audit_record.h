#pragma once
#include "apps/sgactor/arithmetic.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sgactor::apps {

/// What one (re)start of a run wrote of itself. Texts are as audit.jsonl has them, empty where it
/// has nothing.
struct RecordedStart {
  int64_t first_step = 1;
  std::string version;
  std::string job_hash;
  std::string schema_hash;
  std::string device;  ///< "cpu:0"
  std::string fingerprint_hash;
};

/// What a run left of the steps that it has committed.
struct RunRecord {
  std::map<int64_t, std::string> loss_bits;  ///< by step, of metrics.jsonl
  std::map<int64_t, std::string> samples;    ///< sample_hash by step, of audit.jsonl
  std::vector<RecordedStart> starts;         ///< those whose steps still count; oldest first
  std::map<int64_t, int64_t> sizes;  ///< first step -> micro-batch size that was chosen for it
  ArithmeticRecord arithmetic;       ///< by which ranks computed; empty: not recorded
  [[nodiscard]] int64_t first_step() const { return loss_bits.begin()->first; }
  [[nodiscard]] int64_t last_step() const { return loss_bits.rbegin()->first; }
};
/// Reads metrics.jsonl and audit.jsonl; writes nothing. Errors: kInvalidArgument if the directory
/// is none of a run, or has no step; kCorruption if a step has two lines of metrics.
Result<RunRecord> read_run_record(const RunDirectory& run);

/// Steps [first, last] that a run executed with one job.
struct AuditPiece {
  int64_t first = 1;
  int64_t last = 1;
  JobSpec job;
};
/// The steps [first, last] of a run in order, cut where its job or micro-batch size changed. Jobs
/// are found by the hash that the run recorded: RUN/job.resolved.toml, one that a checkpoint
/// carries, or the former with the number of steps after which the next start went on. Errors:
/// kInvalidArgument naming the steps whose job the run no longer holds.
Result<std::vector<AuditPiece>> audit_pieces(const RunDirectory& run, const RunRecord& record,
                                             int64_t first, int64_t last);

}  // namespace sgactor::apps
