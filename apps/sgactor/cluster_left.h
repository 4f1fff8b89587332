#pragma once
#include "actors/core/commit_core.h"
#include "actors/runtime/tls_identity.h"
#include "apps/sgactor/device_deal.h"
#include "apps/sgactor/replay_check.h"
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace sgactor::apps {

/// What a coordinator keeps in RUN/control, which nobody but its user may enter, for the one that
/// takes its run over if it dies. Removed at the run's end.
struct LeftFacts {
  std::string build;
  uint64_t job_hash = 0;
  uint64_t schema_hash = 0;
  int64_t pid = 0;
  std::string secret;  ///< of the data plane
  std::string mirror;  ///< directory; empty: none
  int32_t next_index = 0;
  std::set<HostDevice> closed;                  ///< that no worker may run on any more
  std::map<int32_t, std::string> fingerprints;  ///< by rank, of the arithmetic that it runs on
  actors::JoinToken server;                     ///< where it listened, and as whom
};
/// Writes control/left.json and control/coordinator, durably. Errors: those of the files.
Status write_left(const RunDirectory& run, const LeftFacts& facts);
/// control/left.json alone, after what may change in a run has.
Status write_left_facts(const RunDirectory& run, const LeftFacts& facts);
void remove_left(const RunDirectory& run);

/// A run whose coordinator is gone.
struct LeftRun {
  struct Worker {
    int32_t index = 0;
    int64_t pid = 0;
    std::string host;
    int64_t node_pid = 0;
    std::vector<int32_t> ranks;
  };
  LeftFacts facts;
  actors::TlsIdentity member;     ///< of those that join
  std::vector<Worker> workers;    ///< that were told of last
  int64_t generation = 0;         ///< highest that anybody may have heard of
  actors::CommitRecord standing;  ///< last record of the journal; no incarnations: none
};
/// Nothing if no coordinator has left anything, or it cannot be read. Errors: kCorruption of the
/// journal.
Result<std::optional<LeftRun>> read_left(const RunDirectory& run);
/// Whether a process of this host was started for the run of this token file: the system may have
/// given its number to another one. One that has ended and is not collected is none.
bool is_process_of(const std::string& token_file, int64_t pid);
/// Asks the nodes of this host that wait for a coordinator to end: nobody takes their run over.
void dismiss_left(const RunDirectory& run, const LeftRun& left);

/// What a run has told so far.
struct RecordedSteps {
  std::vector<ReplayCheck::Facts> steps;  ///< of first_step and on
  std::set<int64_t> validated;
};
/// Steps from `first_step` on, as far as metrics.jsonl and audit.jsonl have them without a gap.
RecordedSteps read_recorded(const RunDirectory& run, int64_t first_step);

}  // namespace sgactor::apps
