#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::graph {

struct TunerOptions {
  int64_t batch = 1;  ///< sequences a step and logical rank; sizes divide it, so that it stays
  int64_t start = 1;  ///< the first size; divides `batch`
  int64_t max_size = 4096;
  int32_t warmup_steps = 1;    ///< of each size, not counted: caches are cold after a new plan
  int32_t measured_steps = 3;  ///< of each size; the fastest counts: what disturbs only adds time
  /// Share by which a size must be faster than the best so far to replace it. Above the noise of
  /// step times, so that noise alone never moves the size.
  double min_gain = 0.02;
};

/// What one step of a size took.
struct StepMeasure {
  double seconds = 0;
  double busy_share = 0;   ///< of them, with the busiest rank's compute lane at work; 0: not known
  double bytes_per_s = 0;  ///< that its ops read and wrote; 0: not known
};

/// What the tuner decided at the boundary of a step, for the audit record.
struct TunerDecision {
  int64_t from = 1;
  int64_t to = 1;  ///< equal to `from`: goes on as it is
  bool settled = false;
  StepMeasure measured;  ///< of `from`'s fastest step; all 0 where it could not run
  std::string reason;
};

/// Finds the micro-batch size with the shortest step. A pure controller: no clock, no thread; step
/// times come in, sizes come out. It climbs from the start by factors of about two, first up, then,
/// if that was no gain, down; then looks once between the best size and its neighbours, and settles
/// there for good. Each size is tried once at most, so it cannot oscillate: at most as many changes
/// as sizes, and one back to the best. Step times are assumed to have one valley over the sizes.
///
/// The caller runs steps_needed() steps of size(), reports each by observe(), then calls decide()
/// at the step's boundary and plans for the new size before it runs it. If that plan does not fit
/// the memory, reject() gives another size and nothing ran that did not fit.
class MicroBatchTuner {
 public:
  /// Errors: kInvalidArgument if `start` does not divide `batch` or an option is out of range.
  static Result<MicroBatchTuner> create(const TunerOptions& options);

  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] bool settled() const { return settled_; }
  /// Steps of size() still to be observed before decide(); 0 once settled.
  [[nodiscard]] int32_t steps_needed() const;
  /// One step of size(). The seconds decide: they hold both what a lane that idles loses between
  /// launches or in a pipeline's bubble (busy_share) and what weights read once more for each
  /// micro-batch cost (bytes_per_s); these two are told in the reason. Ignored once settled. Pre:
  /// seconds > 0.
  void observe(const StepMeasure& step);
  /// Pre: not settled, steps_needed() is 0.
  TunerDecision decide();
  /// size(), just proposed by decide() or reject(), cannot run, because of `why`. Pre: nothing was
  /// observed since.
  TunerDecision reject(const std::string& why);
  /// Sizes in the order in which they ran or were rejected.
  [[nodiscard]] const std::vector<int64_t>& tried() const { return tried_; }

 private:
  enum class Phase : uint8_t { kUp, kDown, kBetween };

  explicit MicroBatchTuner(const TunerOptions& options);
  [[nodiscard]] bool was_tried(int64_t size) const;
  /// A size about twice or half as large, not tried yet; 0 if there is none.
  [[nodiscard]] int64_t above(int64_t size) const;
  [[nodiscard]] int64_t below(int64_t size) const;
  /// A size between the best and its next tried neighbour on either side; 0 if there is none.
  [[nodiscard]] int64_t between() const;
  [[nodiscard]] int64_t next_size(bool gained);
  TunerDecision move_on(bool gained, std::string reason);

  TunerOptions options_;
  std::vector<int64_t> sizes_;  // ascending
  std::vector<int64_t> tried_;
  std::vector<StepMeasure> steps_;  // of the size that runs
  Phase phase_ = Phase::kUp;
  int64_t size_;
  int64_t best_;
  double best_seconds_ = 0;  // 0: nothing measured yet
  int32_t between_tries_ = 0;
  bool settled_ = false;
};

}  // namespace sgactor::graph
