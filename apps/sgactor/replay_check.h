#pragma once
#include "actors/runtime/training.h"
#include "graph/base/status.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace sgactor::apps {

/// Stands between the attempts of a run and its recorder: a step that is executed again is compared
/// with what it gave the first time and told to nobody. Remembers the places that the run can go on
/// from. Thread-safe; the recorder hears from one thread at a time.
class ReplayCheck final : public actors::TrainingObserver {
 public:
  struct Point {
    int64_t step = 0;     ///< state after it
    std::string path;     ///< step directory; empty: the run's start
    int64_t redo_to = 0;  ///< the updates up to this step are done again, from kept inputs
  };
  /// What a step must give again.
  struct Facts {
    uint32_t loss_bits;
    uint64_t sample_hash;
  };
  /// `recorder` outlives this. `start` is where the run began; checkpoints below `mirror_root` are
  /// not the recorder's business. Validation is due each `validation_interval` steps (0: never).
  /// Update inputs of the ranks of `plan`, which outlives this, lie below `mirror_root`.
  ReplayCheck(actors::TrainingObserver* recorder, Point start, std::string mirror_root,
              int64_t validation_interval, const graph::Plan* plan);

  /// What a coordinator before this one has told and kept: steps from the one behind the start on,
  /// and copies of the state. Before anything else.
  void recall(std::vector<Facts> steps, std::set<int64_t> validated, std::vector<Point> points);

  void on_step(const actors::StepReport& report) override;
  void on_validation(int64_t step, double loss) override;
  void on_checkpoint(int64_t step, const std::string& path,
                     const transport::WriteStats& stats) override;
  void on_verified(const actors::VerifiedStep& verified) override {
    if (recorder_ != nullptr) recorder_->on_verified(verified);
  }

  /// Step that the recorder has heard of last.
  [[nodiscard]] int64_t last_step() const;
  /// Step that was done last in this attempt.
  [[nodiscard]] int64_t at_step() const;
  /// How long the steps took, in milliseconds, that were done since the last call.
  std::vector<double> take_step_times();
  /// When the first step of this attempt was done that had never been done before, in milliseconds
  /// of the steady clock; 0: not yet.
  [[nodiscard]] int64_t new_step_ms() const;
  /// Steps executed again so far, in all attempts.
  [[nodiscard]] int64_t num_replayed() const;
  /// Its validation has been told.
  [[nodiscard]] bool validated(int64_t step) const;
  /// The newest step on disk, by the run's own checkpoints; the run's start before the first.
  [[nodiscard]] int64_t on_disk() const;
  /// Where the next attempt begins: behind the newest step below `last` that was reported, owes
  /// nothing, and can be come to from a whole copy of the state by the update inputs kept since.
  /// Reads the copy.
  Point newest(int64_t last) const;
  /// The point from which kept update inputs lead to the state after `step`, whatever is owed;
  /// nothing if there is none. Reads the copy.
  std::optional<Point> reaching(int64_t step) const;
  /// An attempt begins, or goes on, after `step`; new is what comes after `committed`.
  void begin_attempt(int64_t step, int64_t committed);
  /// Launches that processes had executed before, up to the first new step of this attempt.
  [[nodiscard]] int64_t reexecuted() const;
  /// kCorruption, scope kJob, naming the first step that came out otherwise the second time.
  [[nodiscard]] Status status() const;

 private:
  [[nodiscard]] bool owes(int64_t step) const;
  [[nodiscard]] bool redoable(int64_t step) const;
  [[nodiscard]] std::vector<Point> newest_first() const;
  [[nodiscard]] bool is_there(const Point& point) const;
  [[nodiscard]] int64_t redo_limit(int64_t step, int64_t target) const;
  mutable std::mutex mutex_;
  actors::TrainingObserver* recorder_;
  Point start_;
  std::string mirror_root_;
  int64_t validation_interval_;
  const graph::Plan* plan_;
  std::vector<Facts> steps_;  // of start_.step + 1 and on
  std::set<int64_t> validated_;
  std::vector<Point> points_;
  int64_t on_disk_;
  int64_t at_step_;
  std::vector<double> step_times_;
  int64_t num_replayed_ = 0;
  int64_t new_step_ms_ = 0;
  int64_t committed_ = 0;  // when the attempt began
  int64_t reexecuted_ = 0;
  Status status_;
};

}  // namespace sgactor::apps
