#include "apps/sgactor/recovery_log.h"

#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <cstring>

namespace sgactor::apps {
namespace {

double rounded(double ms) { return std::round(ms * 100) / 100; }

}  // namespace

std::string recovery_line(const Recovery& r) {
  nlohmann::ordered_json line;
  line["generation"] = r.generation;
  line["fault"] = r.fault;
  line["culprit"] = r.culprit;
  line["step"] = r.step;
  line["detected_unix"] = r.detected_unix;
  line["detected_ms"] = rounded(r.detected_ms);
  line["fenced_ms"] = rounded(r.fenced_ms);
  line["placed_ms"] = rounded(r.placed_ms);
  line["loaded_ms"] = rounded(r.loaded_ms);
  line["restored_ms"] = rounded(r.restored_ms);
  line["first_new_step_ms"] = rounded(r.first_new_step_ms);
  line["from_step"] = r.from_step;
  line["ranks_moved"] = r.ranks_moved;
  line["state_moved_bytes"] = r.state_moved_bytes;
  line["steps_again"] = r.steps_again;
  line["survivors_reexecuted"] = r.survivors_reexecuted;
  line["workers"] = r.workers;
  line["inexact"] = r.inexact;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string recovery_text(const Recovery& r) {
  if (std::isnan(r.first_new_step_ms)) {
    return fmt::format("struck again while recovering from {} at step {} ({})", r.fault, r.step,
                       r.culprit);
  }
  return fmt::format(
      "recovered {} at step {} ({}): {} rank{} moved, {} step{} again, {:.0f} ms to restore, "
      "{:.0f} ms to the next step, {} worker{}",
      r.fault, r.step, r.culprit, r.ranks_moved, r.ranks_moved == 1 ? "" : "s", r.steps_again,
      r.steps_again == 1 ? "" : "s", r.restored_ms, r.first_new_step_ms, r.workers,
      r.workers == 1 ? "" : "s");
}

Status RecoveryLog::open(const std::string& file) {
  SGA_TRY(transport::cut_unfinished_line(file));
  out_.open(file, std::ios::binary | std::ios::app);
  if (out_) return {};
  return internal_error(file + ": cannot write: " + std::strerror(errno));
}

void RecoveryLog::write(const Recovery& recovery) {
  out_ << recovery_line(recovery) << '\n' << std::flush;
  ++num_written_;
}

}  // namespace sgactor::apps
