#pragma once
#include "apps/sgactor/net_address.h"
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::apps {

/// One worker process of a run, as its coordinator wrote it down, and what this host knows of it.
struct WorkerView {
  int64_t index = 0;
  std::string host;
  int64_t pid = 0;
  std::vector<int64_t> ranks;  ///< empty: a spare
  bool here = false;           ///< of this host: its memory is known
  std::string state;           ///< "running", "stopped", "gone"; of a page: as its coordinator says
  int64_t memory_bytes = 0;    ///< resident
  double heard_ago = -1;       ///< seconds since its last sign of life; below 0: not known
};
struct RecoveryView {
  int64_t step = 0;
  std::string fault;
  std::string culprit;
  double restored_ms = 0;
};

/// What a run directory, or a run's status page, shows of it at one moment.
struct RunView {
  std::string path;
  std::string state;      ///< "running", "ended: done", "not running"; of a page also "frozen" …
  std::string page;       ///< that this was read from; "": none
  bool running = false;   ///< more will happen
  int64_t step = 0;       ///< committed last; 0: none yet
  int64_t num_steps = 0;  ///< of the job; 0: not known
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
  double step_ms = 0;
  double memory_gib = 0;       ///< of its metrics
  double seconds_since = 0;    ///< the last step was recorded
  double seconds_left = -1;    ///< below 0: not known
  int64_t checkpoint = 0;      ///< step of the newest; 0: none, or not known
  int64_t generation = 0;      ///< 0: not known
  bool has_processes = false;  ///< workers of its own are listed
  std::vector<WorkerView> workers;
  std::vector<RecoveryView> recoveries;  ///< newest last; of a page perhaps not all
  int64_t num_recoveries = 0;
};

/// Reads metrics.jsonl (its end), control/state.json, recoveries.jsonl and audit.jsonl (its end);
/// asks /proc for workers of this host. Writes nothing. Errors: kInvalidArgument if the directory
/// is none of a run.
Result<RunView> read_view(const RunDirectory& run);
/// Asks a status page for its run. Errors: kUnsupported, scope kDevice, if it does not answer, or
/// is no page of a run.
Result<RunView> read_page(const NetAddress& page);
/// Reads the page of this run, if RUN/status_page names one that answers for it; else the
/// directory. Errors: as read_view.
Result<RunView> read_page_or_view(const RunDirectory& run);
/// What `/status` has answered. Errors: kCorruption if it is no such thing.
Result<RunView> view_of_status(const std::string& json);
/// A frame of several lines, the newest `most_recoveries` recoveries among them.
std::string view_text(const RunView& view, size_t most_recoveries = 5);

}  // namespace sgactor::apps
