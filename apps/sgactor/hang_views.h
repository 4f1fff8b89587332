#pragma once
#include "actors/runtime/worker_assembly.h"
#include "graph/base/status.h"
#include "supervision/monitor/hang_report.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

/// What the ranks of a worker are at. Reads counters and channels; waits for nobody, so that it can
/// be asked of a process that stands still. Any thread.
std::vector<supervision::RankView> rank_views(const actors::WorkerAssembly& assembly);

/// Between processes: JSON. Errors: kCorruption.
std::string encode_views(const std::vector<supervision::RankView>& views);
Result<std::vector<supervision::RankView>> decode_views(std::string_view text);

/// A process of the run, for a report.
struct HangWorker {
  int32_t index = -1;
  int64_t pid = 0;
  std::string host;
  std::vector<int32_t> ranks;
  int64_t silent_ms = 0;  ///< since its last heartbeat
};
/// hang_report.json.
struct HangFile {
  std::string fault;  ///< "silence" or "no progress"
  std::string culprit;
  int64_t generation = 0;
  int64_t step = 0;          ///< committed last
  double detected_unix = 0;  ///< seconds
  double still_ms = 0;       ///< since the last sign of life or of progress, at detection
  double reported_ms = 0;    ///< from detection to this report
  std::vector<HangWorker> workers;
};
/// Everything by name: who did not join what, who waits in what, last messages.
nlohmann::ordered_json hang_json(const HangFile& file, const supervision::HangReport& report,
                                 const std::vector<supervision::RankView>& views);

}  // namespace sgactor::apps
