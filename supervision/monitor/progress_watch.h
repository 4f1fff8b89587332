#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace sgactor::supervision {

/// Tells a job that stands still from one that is slow. Workers count what their actors handle; as
/// long as one of the counts rises, the job goes on. It stands still when none has risen for
/// `factor` times as long as a step takes: the median of the last ones. While there are fewer than
/// three, kGuessFactor times what is expected counts as a step, and no standstill is one that is
/// shorter than kGuessFloorMs; never, where nothing is expected. Pure; `now` is a parameter, in
/// milliseconds.
class ProgressWatch {
 public:
  /// An expectation is of a model, or of another run: a machine may have a tenth of the speed, and
  /// be busy with something else besides.
  static constexpr double kGuessFactor = 10;
  /// First steps compile kernels, read data and fill caches, which no expectation holds; on a slow
  /// and busy machine that took seconds, never a minute without any message.
  static constexpr int64_t kGuessFloorMs = 60'000;

  /// `floor_ms`: never less than this. `factor` 0: never. `expected_step_ms` 0: not known.
  ProgressWatch(double factor, int64_t floor_ms, double expected_step_ms = 0)
      : factor_(factor), floor_ms_(floor_ms), expected_step_ms_(expected_step_ms) {}

  void on_step(double ms);
  void on_count(int32_t worker, int64_t count, int64_t now_ms);
  /// Nothing is known of what was before: a recovery, or nobody is at work.
  void restart(int64_t now_ms) { risen_ms_ = now_ms; }

  [[nodiscard]] int64_t limit_ms() const;
  [[nodiscard]] bool stands_still(int64_t now_ms) const;
  /// 0 before the first count or restart: nobody can stand still that was not seen to begin.
  [[nodiscard]] int64_t still_ms(int64_t now_ms) const {
    return risen_ms_ < 0 ? 0 : now_ms - risen_ms_;
  }

 private:
  static constexpr size_t kMostSteps = 31;

  double factor_;
  int64_t floor_ms_;
  double expected_step_ms_;
  std::vector<double> steps_;  // the last ones, a ring
  size_t num_steps_ = 0;
  std::map<int32_t, int64_t> counts_;
  int64_t risen_ms_ = -1;
};

}  // namespace sgactor::supervision
