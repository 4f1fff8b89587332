#pragma once
#include <cstdint>
#include <string>

namespace sgactor::apps {

/// What a progress line shows. Rates are of this step.
struct ProgressFacts {
  int64_t step = 0;
  int64_t first_step = 1;  ///< of this invocation (after --resume not 1)
  int64_t last_step = 1;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
  double tflops = 0;
  int64_t memory_bytes = 0;
  double seconds_left = 0;
};

/// One aligned line without newline. The same widths on every line of a run. `colour`: ANSI
/// colours.
std::string progress_line(const ProgressFacts& facts, bool colour);

/// Guesses the time left from the wall time of past steps, newer ones weighing more. Pure: the
/// caller's clock.
class TimeLeft {
 public:
  /// A step ended at `now` (seconds, any origin). Returns the guess for `steps_left` more.
  double step_done(double now, int64_t steps_left);

 private:
  double last_ = -1;
  double mean_ = 0;
  int64_t num_ = 0;
};

/// True if colours are wanted on file descriptor `fd`: a terminal, NO_COLOR unset, TERM not dumb.
bool wants_colour(int fd);

}  // namespace sgactor::apps
