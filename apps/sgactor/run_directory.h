#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>

namespace sgactor::apps {

/// Where a run keeps what: job.resolved.toml, metrics.jsonl, validation.jsonl, audit.jsonl,
/// recoveries.jsonl, hang_report.json (the newest, if any), journal.log (commits), trace/, ckpt/,
/// report.json. Names only; the functions below do the work.
struct RunDirectory {
  std::string path;
  [[nodiscard]] std::string job() const { return path + "/job.resolved.toml"; }
  [[nodiscard]] std::string metrics() const { return path + "/metrics.jsonl"; }
  [[nodiscard]] std::string validation() const { return path + "/validation.jsonl"; }
  [[nodiscard]] std::string audit() const { return path + "/audit.jsonl"; }
  [[nodiscard]] std::string journal() const { return path + "/journal.log"; }
  [[nodiscard]] std::string recoveries() const { return path + "/recoveries.jsonl"; }
  [[nodiscard]] std::string hang_report() const { return path + "/hang_report.json"; }
  [[nodiscard]] std::string trace() const { return path + "/trace/rank0_trace.json.gz"; }
  [[nodiscard]] std::string checkpoints() const { return path + "/ckpt"; }
  [[nodiscard]] std::string report() const { return path + "/report.json"; }
  /// Times that `sgactor ctl RUN profile` asked for last.
  [[nodiscard]] std::string profile() const { return path + "/profile.json"; }
  /// While a run of several processes goes on: who hosts what, and what `sgactor ctl` asks for.
  [[nodiscard]] std::string state() const { return path + "/control/state.json"; }
  [[nodiscard]] std::string request() const { return path + "/control/request.json"; }
  [[nodiscard]] std::string lock() const { return path + "/lock"; }
  /// While a run that has a page goes on: its "HOST:PORT". A process that is killed leaves it.
  [[nodiscard]] std::string status_page() const { return path + "/status_page"; }
  [[nodiscard]] std::string tensorboard() const { return path + "/tensorboard"; }
  [[nodiscard]] std::string hf_export() const { return path + "/hf"; }
};

/// "runs/<name>-20250131-235959", made free by "-2", "-3" … if it exists. `unix_time` is shown in
/// local time.
std::string default_run_path(const std::string& name, int64_t unix_time);
/// Errors: kInvalidArgument if `path` exists and is not an empty directory (a lock file alone,
/// which a killed process left, counts as empty). Touches nothing.
Status check_new_run(const std::string& path);
/// Makes the directory with ckpt/ and trace/ inside. Errors: kInvalidArgument with errno's text.
Status create_run(const RunDirectory& run);
/// Cuts a JSON-lines file back to the lines whose "step" is at most `last_step`; an unfinished or
/// malformed last line goes too. Atomic (rename). A missing file is fine. Returns the number of
/// lines dropped. Errors: kCorruption naming file and line if a line before the last is no JSON
/// object with a step.
Result<int64_t> truncate_steps(const std::string& file, int64_t last_step);

/// The one writer of a run directory: an exclusive flock on RUN/lock, which holds the owner's pid.
/// Held until destruction, which also removes the file; a process that dies frees it too.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Call once. The directory must exist. Errors: kInvalidArgument "RUN: run directory is in use by
  /// pid N" if another process holds it (nothing is touched then), or with errno's text.
  Status take(const RunDirectory& run);

 private:
  std::string file_;
  int fd_ = -1;
};

/// Errors: kInvalidArgument as RunLock::take if another process holds the lock. Touches nothing.
Status check_not_in_use(const RunDirectory& run);
/// Makes the directory if need be, takes its lock and checks under it that the run is still new.
Status claim_new_run(const RunDirectory& run, RunLock& lock);

}  // namespace sgactor::apps
