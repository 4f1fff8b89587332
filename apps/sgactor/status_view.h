#pragma once
#include "apps/sgactor/status_board.h"

#include <cstdint>
#include <string>

namespace sgactor::apps {

// What the status page shows of a snapshot. Pure; `now_ms` is of apps::now_ms(), for ages.

/// One JSON object and a newline. Numbers that are not finite or not known are null.
std::string status_json(const StatusSnapshot& status, int64_t now_ms);
/// Prometheus' text format, version 0.0.4. What is not known yet has no sample.
std::string status_metrics(const StatusSnapshot& status, int64_t now_ms);
/// A page that needs nothing else, no script either, and loads itself again every two seconds.
std::string status_html(const StatusSnapshot& status, int64_t now_ms);
/// "" while steps are being done, or all have been; else why not, in one line.
std::string status_trouble(const StatusSnapshot& status);

}  // namespace sgactor::apps
