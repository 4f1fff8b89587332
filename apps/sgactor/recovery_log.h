#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace sgactor::apps {

/// What became of one fault, or of one change of the number of workers. Times in milliseconds after
/// the fault's detection, but detected_ms, which is from its instant as far as that is known: the
/// last sign of life of a hung worker.
struct Recovery {
  static constexpr double kNever = std::numeric_limits<double>::quiet_NaN();
  int64_t generation = 0;    ///< that it led to
  std::string fault;         ///< "worker exit", "hang", …; "resize"
  std::string culprit;       ///< "worker 1 (pid 4711 on host): killed by signal 9"
  int64_t step = 0;          ///< committed last before it
  double detected_unix = 0;  ///< seconds
  double detected_ms = 0;
  double fenced_ms = 0;          ///< nothing of the generation before is heard any more
  double placed_ms = kNever;     ///< each lost rank has a worker that takes it over
  double loaded_ms = kNever;     ///< these have read the state
  double restored_ms = 0;        ///< all ranks hold the state of `from_step` and are ready to go on
  double first_new_step_ms = 0;  ///< a step is done that had never been done before
  int64_t from_step = 0;
  int64_t ranks_moved = 0;
  int64_t state_moved_bytes = 0;  ///< parameters and moments, read by those that took ranks over
  int64_t steps_again = 0;
  /// Launches that processes executed although they had executed the same ones before.
  int64_t survivors_reexecuted = 0;
  int64_t workers = 0;   ///< that host ranks now
  bool inexact = false;  ///< a rank moved to another arithmetic: bits may differ from here on
};
/// The line of recoveries.jsonl, without newline.
std::string recovery_line(const Recovery& recovery);
/// For people: "recovered worker exit at step 20 (worker 1 …): 1 rank moved, …".
std::string recovery_text(const Recovery& recovery);

/// recoveries.jsonl of a run, which is there from the start and empty without any. Appends.
class RecoveryLog {
 public:
  /// Errors: kInternal with errno's text.
  Status open(const std::string& file);
  void write(const Recovery& recovery);
  [[nodiscard]] int64_t num_written() const { return num_written_; }

 private:
  std::ofstream out_;
  int64_t num_written_ = 0;
};

}  // namespace sgactor::apps
